// The name of this machine, and where temporary files lie. Stateless; any thread.
#pragma once

#include <string>

namespace ckptfs::io {

// As gethostname(2) has it; empty if it does not tell.
std::string host_name();

// $TMPDIR, else /tmp.
std::string temporary_folder();

}  // namespace ckptfs::io
