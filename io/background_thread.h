// A thread that works in the background: a loop around wait(), which returns at a wake(), after a time, and at the
// stop. What the thread is to do lies in fields of its owner, under the owner's lock. Whoever changes them calls
// wake().
//
// It is the owner's last field. So it is destroyed first, which stops the thread before what the thread works on goes.
//
// Thread safety: wake() from any thread; start() and stop() from the owner's; wait(), wait_for() and is_stopping() from
// the background thread itself. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <stop_token>
#include <thread>

#include "io/mutex.h"

namespace ckptfs::io {

class BackgroundThread {
 public:
  // `low`: a low CPU priority, and the I/O priority class "idle", in which the thread reads and writes only when nobody
  // else does. A refusal by the kernel is logged.
  enum class Priority { normal, low };

  // May be called again after stop().
  void start(std::function<void()> work, Priority priority = Priority::normal);
  // Asks the thread to end, and waits for that. Does nothing if no thread runs.
  void stop();

  // Ends the wait that is under way, or else the next one.
  void wake();
  // Waits for a wake() or the stop. False: the stop.
  bool wait();
  // Likewise, at most so long.
  bool wait_for(std::chrono::nanoseconds time);
  bool is_stopping() const { return stop_.stop_requested(); }

 private:
  Mutex mutex_;
  std::condition_variable_any wake_;  // not CondVar: it knows no stop_token
  bool woken_ GUARDED_BY(mutex_) = false;
  std::stop_token stop_;  // the thread's own
  std::jthread thread_;
};

}  // namespace ckptfs::io
