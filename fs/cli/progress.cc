#include "fs/cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include "fs/cli/format.h"

namespace ckptfs::fs::cli {
namespace {

constexpr std::chrono::milliseconds kBetweenShown{200};

}  // namespace

Progress::Progress(std::string what) : terminal_(isatty(STDERR_FILENO) == 1), what_(std::move(what)) {}

Progress::~Progress() {
  const io::MutexLock lock(mutex_);
  erase();
}

bool Progress::is_due() const {
  const auto now = Clock::now();
  return terminal_ && now - began_ >= std::chrono::seconds(1) && now - printed_ >= kBetweenShown;
}

void Progress::show(uint64_t bytes, uint64_t total) {
  const io::MutexLock lock(mutex_);
  if (!is_due()) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  const std::string of = total == 0 ? "" : " of " + human_size(total);
  const auto rate = static_cast<uint64_t>(static_cast<double>(bytes) / seconds);
  print(human_size(bytes) + of + ", " + human_size(rate) + "/s");
}

void Progress::show_count(const std::string& what, uint64_t count) {
  const io::MutexLock lock(mutex_);
  if (what != what_) {
    erase();
    what_ = what;
    began_ = Clock::now();
  }
  if (is_due()) print(std::to_string(count));
}

void Progress::print(const std::string& text) {
  std::fprintf(stderr, "\r\033[K%s: %s", what_.c_str(), text.c_str());
  std::fflush(stderr);
  printed_ = Clock::now();
  shown_ = true;
}

void Progress::erase() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

Waiting::Waiting(std::string what) : what_(std::move(what)) {
  if (isatty(STDERR_FILENO) == 1) thread_.start([this] { run(); });
}

void Waiting::run() {
  unsigned seconds = 0;
  while (thread_.wait_for(std::chrono::seconds(1))) {
    std::fprintf(stderr, "\r\033[K%s: %u s", what_.c_str(), ++seconds);
    std::fflush(stderr);
  }
  if (seconds != 0) std::fprintf(stderr, "\r\033[K");
}

}  // namespace ckptfs::fs::cli
