// Makes text from others (mostly file names) safe for a log or a terminal.
#pragma once

#include <string>
#include <string_view>

namespace ckptfs::io {

// Returns one line without control sequences: each control character (C0, DEL, C1) and each byte that is not UTF-8
// becomes \xNN. Printable text stays as it is, even text that looks like such an escape.
std::string printable(std::string_view text);

// Is all of it valid UTF-8?
bool is_utf8(std::string_view text);

}  // namespace ckptfs::io
