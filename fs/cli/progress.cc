#include "fs/cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include "fs/cli/format.h"

namespace ckptfs::fs::cli {

Progress::Progress(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
}

void Progress::show(uint64_t bytes, uint64_t total) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  if (!terminal_ || seconds < 1) return;
  const std::string of = total == 0 ? "" : " of " + human_size(total);
  const auto rate = static_cast<uint64_t>(static_cast<double>(bytes) / seconds);
  std::fprintf(stderr, "\r\033[K%s: %s%s, %s/s", what_.c_str(), human_size(bytes).c_str(), of.c_str(),
               human_size(rate).c_str());
  std::fflush(stderr);
  shown_ = true;
}

Waiting::Waiting(std::string what) : what_(std::move(what)) {
  if (isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { run(); });
}

Waiting::~Waiting() {
  if (!thread_.joinable()) return;
  {
    const io::MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Waiting::run() {
  io::MutexLock lock(mutex_);
  unsigned seconds = 0;
  while (!changed_.wait_for(mutex_, std::chrono::seconds(1), [this]() REQUIRES(mutex_) { return over_; })) {
    std::fprintf(stderr, "\r\033[K%s: %u s", what_.c_str(), ++seconds);
    std::fflush(stderr);
  }
  if (seconds != 0) std::fprintf(stderr, "\r\033[K");
}

}  // namespace ckptfs::fs::cli
