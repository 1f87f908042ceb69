// Log lines. fmt formats them and spdlog writes them where fs/cli/log.h has told it to, unless another sink takes them
// (in the library for other programs); spdlog's headers are left to log.cc, since each source that sees them takes five
// seconds longer to compile. Control characters are escaped (io/printable.h), so that no name makes a line of its own.
//
// Thread safety: all of it.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace ckptfs::log {

enum class Level { debug, info, warning, error };

// From now on lines go there instead; null: to spdlog again. Debug lines do not.
using Sink = void (*)(Level level, const std::string& line);
void send_to(Sink sink);

bool is_wanted(Level level);
void write_line(Level level, std::string_view line);

template <typename... Arguments>
void write(Level level, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (is_wanted(level)) write_line(level, fmt::format(format, std::forward<Arguments>(arguments)...));
}

template <typename... Arguments>
void debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::debug, format, std::forward<Arguments>(arguments)...);
}

template <typename... Arguments>
void info(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::info, format, std::forward<Arguments>(arguments)...);
}

template <typename... Arguments>
void warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::warning, format, std::forward<Arguments>(arguments)...);
}

template <typename... Arguments>
void error(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::error, format, std::forward<Arguments>(arguments)...);
}

}  // namespace ckptfs::log
