// Tells the kernel, from a thread of its own, that what it caches of an inode or a name is out of date. The kernel may
// take locks for that which a request waiting for us holds, so it is never done by a thread that serves requests.
//
// Thread safety: all of it. Lock: mutex_ (a leaf), never held while the kernel is told.
#pragma once

#include <chrono>
#include <compare>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "fs/counters.h"
#include "meta/types.h"

namespace ckptfs::fs {

class Notifications {
 public:
  // An inode's attributes, or, with a name, what the kernel remembers under it in that directory.
  struct Change {
    meta::InodeNumber inode = 0;
    std::string name;
    auto operator<=>(const Change&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
  };
  // `tell` reaches the kernel; called on the thread only.
  Notifications(std::function<void(const Change&)> tell, Counters& counters)
      : tell_(std::move(tell)), counters_(counters) {}
  ~Notifications() { stop(); }

  void start();
  // Tells what is queued, then ends the thread. What is queued later is dropped.
  void stop();

  // Never waits; what waits to be told already is told once.
  void attributes_changed(meta::InodeNumber inode) { queue({inode, {}}); }
  void name_changed(meta::InodeNumber folder, const std::string& name) { queue({folder, name}); }
  // Until all that was queued before has been told, or the time is over. Not for threads that the kernel waits for.
  void wait_until_told(std::chrono::milliseconds time);

 private:
  void queue(Change change);
  void run();

  const std::function<void(const Change&)> tell_;
  Counters& counters_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Change> queue_;  // guarded by mutex_
  std::set<Change> queued_;   // guarded by mutex_; what queue_ holds
  bool running_ = false;      // guarded by mutex_
  bool telling_ = false;      // guarded by mutex_
  std::thread thread_;
};

}  // namespace ckptfs::fs
