#include "fs/cli/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/syslog_sink.h>
#include <spdlog/spdlog.h>
#include <syslog.h>

#include <memory>

namespace ckptfs::fs::cli {

bool is_log_level(const std::string& level) {
  return level == "off" || spdlog::level::from_str(level) != spdlog::level::off;
}

Result<> open_log(const std::string& file, bool foreground, const std::string& level) {
  spdlog::sink_ptr sink;
  try {
    if (!file.empty()) {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
    } else if (foreground) {
      sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::syslog_sink_mt>("ckptfs", LOG_PID, LOG_DAEMON, false);
    }
  } catch (const spdlog::spdlog_ex& e) {
    return Error(EIO, file + ": cannot be opened as a log: " + e.what());
  }
  auto logger = std::make_shared<spdlog::logger>("ckptfs", std::move(sink));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  return success();
}

}  // namespace ckptfs::fs::cli
