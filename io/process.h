// Runs another program and collects its output. Any thread. The program gets our environment with LC_ALL=C, an empty
// standard input, none of our descriptors, and default signal handling. It is searched in PATH and then in the folders
// of system programs, which a user's PATH often lacks.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::io {

struct ProcessOutput {
  int status = 0;  // exit status; 128 + the signal's number if a signal ended it
  std::string out;
  std::string err;
};

// Returns the program's path. Fails with ENOENT, naming the program, if it is not found.
Result<std::string> find_program(const std::string& name);
// Runs the program named by arguments[0]. An Error means that it could not be run at all. It gets SIGTERM soon after
// `stop` is set.
Result<ProcessOutput> run_process(const std::vector<std::string>& arguments, const std::atomic<bool>* stop = nullptr);
// Returns the standard output. An exit status other than 0 is an Error (EIO) with the command and its standard error.
Result<std::string> run_checked(const std::vector<std::string>& arguments);

}  // namespace ckptfs::io
