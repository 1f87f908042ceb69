// The name of this machine. Stateless; any thread.
#pragma once

#include <string>

namespace ckptfs::io {

// As gethostname(2) has it; empty if it does not tell.
std::string host_name();

}  // namespace ckptfs::io
