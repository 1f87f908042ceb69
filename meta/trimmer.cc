#include "meta/trimmer.h"

#include "io/log.h"
#include "io/preallocated.h"

namespace ckptfs::meta {
namespace {
constexpr int kRounds = 3;  // after a file was written: XFS lets go of it when the kernel's flusher has been there
}

Trimmer::Trimmer(Space& space, std::chrono::milliseconds interval)
    : space_(space), interval_(interval), thread_([this] { run(); }) {}

Trimmer::~Trimmer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Trimmer::run() {
  int rounds = 0;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [this] { return stopping_; })) {
    if (space_.take_written()) rounds = kRounds;
    if (rounds == 0) continue;
    --rounds;
    lock.unlock();
    if (const auto freed = space_.free_preallocated(io::OpenFilesToo::no); !freed) {
      log::warn("the store keeps what was allocated ahead for a while: {}", freed.error().message());
    }
    lock.lock();
  }
}

}  // namespace ckptfs::meta
