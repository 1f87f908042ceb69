#include "io/log.h"

#include <spdlog/spdlog.h>

#include <atomic>

#include "io/printable.h"

namespace ckptfs::log {
namespace {

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      break;
  }
  return spdlog::level::err;
}

std::atomic<Sink> sink_of_lines{nullptr};

}  // namespace

void send_to(Sink sink) { sink_of_lines = sink; }

bool is_wanted(Level level) {
  return sink_of_lines.load() != nullptr ? level != Level::debug : spdlog::should_log(level_of(level));
}

void write_line(Level level, std::string_view line) {
  const std::string text = io::printable(line);
  if (const Sink sink = sink_of_lines) return sink(level, text);
  spdlog::log(level_of(level), text);
}

}  // namespace ckptfs::log
