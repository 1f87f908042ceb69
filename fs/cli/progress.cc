#include "fs/cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include "fs/cli/format.h"

namespace ckptfs::fs::cli {
namespace {

constexpr std::chrono::milliseconds kBetweenCounts{200};

}  // namespace

Progress::Progress(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
}

void Progress::show(uint64_t bytes, uint64_t total) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  if (!terminal_ || seconds < 1) return;
  const std::string of = total == 0 ? "" : " of " + human_size(total);
  const auto rate = static_cast<uint64_t>(static_cast<double>(bytes) / seconds);
  print(human_size(bytes) + of + ", " + human_size(rate) + "/s");
}

void Progress::show_count(uint64_t count) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - began_ < std::chrono::seconds(1) || now - printed_ < kBetweenCounts) return;
  printed_ = now;
  print(std::to_string(count));
}

void Progress::print(const std::string& text) {
  std::fprintf(stderr, "\r\033[K%s: %s", what_.c_str(), text.c_str());
  std::fflush(stderr);
  shown_ = true;
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
