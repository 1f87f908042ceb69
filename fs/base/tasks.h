// Threads for operations that take long (save, seal, fsync): each runs on one of its own, so that no worker of the
// session waits.
//
// Thread safety: all of it. Lock: mutex_ (a leaf), never held while a task runs.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <thread>

#include "io/mutex.h"
#include "io/result.h"

namespace ckptfs::fs {

class Tasks {
 public:
  ~Tasks() { wait(); }

  // Runs `work` on a new thread. EAGAIN when there is no thread to be had.
  Result<> start(std::function<void()> work);
  // Returns when all tasks have ended. Meanwhile only tasks may start tasks.
  void wait();

 private:
  struct Task {
    std::thread thread;
    std::atomic<bool> ended{false};
  };

  io::Mutex mutex_;
  std::list<Task> tasks_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs
