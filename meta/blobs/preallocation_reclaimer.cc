#include "meta/blobs/preallocation_reclaimer.h"

#include <utility>

#include "io/log.h"
#include "io/preallocated.h"

namespace ckptfs::meta {
namespace {
constexpr int kRounds = 3;  // after a file was written: XFS frees nothing before the kernel has written the file back
}

PreallocationReclaimer::PreallocationReclaimer(Space& space, std::chrono::milliseconds interval,
                                               std::function<void()> each_round)
    : space_(space), interval_(interval), each_round_(std::move(each_round)), thread_([this] { run(); }) {}

PreallocationReclaimer::~PreallocationReclaimer() {
  {
    const io::MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void PreallocationReclaimer::run() {
  int rounds = 0;
  io::MutexLock lock(mutex_);
  while (!wake_.wait_for(mutex_, interval_, [this]() REQUIRES(mutex_) { return stopping_; })) {
    lock.unlock();
    if (space_.take_written()) rounds = kRounds;
    if (rounds > 0) {
      --rounds;
      if (const auto freed = space_.free_preallocated(io::OpenFilesToo::no); !freed) {
        log::warn("the store keeps what was allocated ahead for a while: {}", freed.error().message());
      }
    }
    each_round_();
    lock.lock();
  }
}

}  // namespace ckptfs::meta
