// Log lines. fmt formats them and spdlog writes them, as fs/cli/log.h has set it up, unless another sink takes them (in
// the library for other programs). Only log.cc includes spdlog's headers: they cost each source file five seconds of
// compile time. Control characters are escaped (io/printable.h), so that a file name cannot start a new line.
//
// Thread-safe.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace ckptfs::log {

enum class Level { debug, info, warning, error };

// Sends the lines to `sink` from now on, or to spdlog again if it is null. Debug lines are not sent to a sink.
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
