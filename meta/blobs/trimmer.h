// Gives back, in the background and now and then, what XFS allocated ahead of files that nobody writes any more:
// copy-on-write takes whole extent hints, of which a small change fills little. XFS by itself waits much longer. Nobody
// counts these blocks (FIEMAP does not tell), so `ckptfs du` does not show them.
//
// Thread safety: all of it. Lock: mutex_, never held across a system call.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "io/mutex.h"
#include "meta/blobs/space.h"

namespace ckptfs::meta {

class Trimmer {
 public:
  // At most once in each `interval`, and only if a file was written a short while ago.
  // `each_round`: called then, too, whether a file was written or not.
  Trimmer(Space& space, std::chrono::milliseconds interval, std::function<void()> each_round);
  ~Trimmer();

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
