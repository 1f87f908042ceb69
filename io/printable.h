// Text from others (names, mostly) for a log or a terminal.
#pragma once

#include <string>
#include <string_view>

namespace ckptfs::io {

// One line that no terminal obeys: each control character (C0, DEL, C1) and each byte that is not UTF-8 becomes \xNN.
// What is printable stays as it is, so a text that looks escaped need not be.
std::string printable(std::string_view text);

}  // namespace ckptfs::io
