// Fault points, like RocksDB's sync points: named places where a test makes the daemon stop, fail or answer otherwise.
// They are set by the environment variable CKPTFS_FAULTS="name=value;name2=value2" at start, or by set_fault in unit
// tests. Without CKPTFS_FAULT_POINTS (release builds) they compile to nothing.
//   value "kill"      the process dies by SIGKILL        value "error:ERRNO"  the point fails with that errno
//   value "sleep:MS"  the thread waits                   any other value      read by the point itself (fault_value)
// ERRNO is a number or a name (ENOSPC). A count before one of these three actions ("3:kill", "2:error:ENOSPC") makes
// the point act only at that hit, counted from when it was set. Without a count it acts at every hit. Any thread.
#pragma once

#include <optional>
#include <string>

#include "io/result.h"

namespace ckptfs::io {

#ifdef CKPTFS_FAULT_POINTS
Result<> fault_point(const char* name);
std::optional<std::string> fault_value(const char* name);
void set_fault(const std::string& name, const std::string& value);  // an empty value clears it
#else
inline Result<> fault_point(const char*) { return success(); }
inline std::optional<std::string> fault_value(const char*) { return std::nullopt; }
#endif

}  // namespace ckptfs::io
