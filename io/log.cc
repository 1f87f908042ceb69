#include "io/log.h"

#include <spdlog/spdlog.h>

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

}  // namespace

bool is_wanted(Level level) { return spdlog::should_log(level_of(level)); }

void write_line(Level level, std::string_view line) { spdlog::log(level_of(level), line); }

}  // namespace ckptfs::log
