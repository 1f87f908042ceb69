// Frees in the background what XFS preallocated for files that nobody writes any more. Copy-on-write allocates whole
// extent hints, of which a small change fills little. XFS frees the rest by itself, but much later. FIEMAP does not
// report these blocks, so `ckptfs du` does not show them.
//
// Thread safety: all of it. Lock: mutex_, never held across a system call.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "io/mutex.h"
#include "meta/blobs/space.h"

namespace ckptfs::meta {

class PreallocationReclaimer {
 public:
  // Frees once in each `interval`, if a file was written in one of the last few. `each_round` is called in each
  // interval, whether a file was written or not.
  PreallocationReclaimer(Space& space, std::chrono::milliseconds interval, std::function<void()> each_round);
  ~PreallocationReclaimer();

 private:
  void run();

  Space& space_;
  const std::chrono::milliseconds interval_;
  const std::function<void()> each_round_;
  io::Mutex mutex_;
  io::CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ckptfs::meta
