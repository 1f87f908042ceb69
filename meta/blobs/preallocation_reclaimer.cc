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
    : space_(space), interval_(interval), each_round_(std::move(each_round)) {
  thread_.start([this] { run(); });
}

void PreallocationReclaimer::run() {
  int rounds = 0;
  while (thread_.wait_for(interval_)) {
    if (space_.take_written()) rounds = kRounds;
    if (rounds > 0) {
      --rounds;
      if (const auto freed = space_.free_preallocated(io::OpenFilesToo::no); !freed) {
        log::warn("the store keeps what was allocated ahead for a while: {}", freed.error().message());
      }
    }
    each_round_();
  }
}

}  // namespace ckptfs::meta
