// Runs another program and keeps what it printed. Any thread. The program gets our environment with LC_ALL=C, an empty
// standard input, no descriptors of ours and default signal handling. It is looked for in PATH and then in the folders
// of system programs, which a user's PATH often lacks.
#pragma once

#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::io {

struct ProcessOutput {
  int status = 0;  // exit status; 128 + the signal where one ended it
  std::string out;
  std::string err;
};

// Where the program is; ENOENT, naming it, where it is not.
Result<std::string> find_program(const std::string& name);
// arguments[0] is the program's name. An Error only where it could not be run at all.
Result<ProcessOutput> run_process(const std::vector<std::string>& arguments);
// Its standard output; an exit status other than 0 is an Error (EIO) with the command and its standard error.
Result<std::string> run_checked(const std::vector<std::string>& arguments);

}  // namespace ckptfs::io
