// Tells the kernel, from a thread of its own, that what it caches of an inode or a name is out of date. The kernel may
// take locks for that which an unanswered request holds, so no thread that serves requests does it.
//
// To be told of a name the kernel takes the lock of its folder, which it also holds for most requests about that folder
// until they are answered. The thread cannot be ended while it waits for that lock. If the daemon were killed then, its
// /dev/fuse would stay open, and the request would wait for ever; `ckptfs mount` and `umount` would have to abort the
// connection (io/fuse_connection.h). So the names of a folder wait while a request about it may take long (`hold`).
//
// Thread safety: all of it. Lock: mutex_ (a leaf), never held while the kernel is told.
#pragma once

#include <chrono>
#include <compare>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "fs/base/counters.h"
#include "io/mutex.h"
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
  // Ends the thread. What is still queued is dropped: nobody can look it up any more.
  void stop();

  // Never waits; what waits to be told already is told once.
  void attributes_changed(meta::InodeNumber inode) { queue({inode, {}}); }
  void name_changed(meta::InodeNumber folder, const std::string& name) { queue({folder, name}); }
  // Until all that was queued before has been told, but for names that are held, or the time is over. Not for threads
  // that the kernel waits for.
  void wait_until_told(std::chrono::milliseconds time);

  // From hold() to release() a request about this folder is unanswered. Any number at once, in any order: a release may
  // even overtake its hold.
  void hold(meta::InodeNumber folder);
  void release(meta::InodeNumber folder);

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    int requests = 0;
    Clock::time_point until;  // where there are none any more
  };

  void queue(Change change);
  void run();
  bool may_be_told(const Change& change) REQUIRES(mutex_);
  bool has_change_to_tell() REQUIRES(mutex_);
  void wait_for_change() REQUIRES(mutex_);

  const std::function<void(const Change&)> tell_;
  Counters& counters_;
  io::Mutex mutex_;
  io::CondVar wake_;
  std::deque<Change> queue_ GUARDED_BY(mutex_);
  std::set<Change> queued_ GUARDED_BY(mutex_);                           // what queue_ holds
  std::unordered_map<meta::InodeNumber, Held> held_ GUARDED_BY(mutex_);  // folders
  bool running_ GUARDED_BY(mutex_) = false;
  bool telling_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ckptfs::fs
