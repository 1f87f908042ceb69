#include "meta/index/index_messages.h"

#include <rocksdb/env.h>

#include <array>
#include <cstdarg>
#include <cstdio>

#include "io/log.h"

namespace ckptfs::meta {
namespace {

class IndexMessages : public rocksdb::Logger {
 public:
  IndexMessages() : Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  void LogHeader(const char*, va_list) override {}

  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level < GetInfoLogLevel() || level == rocksdb::InfoLogLevel::HEADER_LEVEL) return;
    std::array<char, 1024> line{};  // longer messages are truncated
    std::vsnprintf(line.data(), line.size(), format, arguments);
    if (level == rocksdb::InfoLogLevel::WARN_LEVEL) {
      log::warn("index: {}", line.data());
    } else {
      log::error("index: {}", line.data());
    }
  }
  using Logger::Logv;
};

}  // namespace

std::shared_ptr<rocksdb::Logger> index_messages() { return std::make_shared<IndexMessages>(); }

}  // namespace ckptfs::meta
