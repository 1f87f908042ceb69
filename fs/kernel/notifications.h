// Tells the kernel, from threads of its own, that what it caches of an inode or a name is out of date. The kernel may
// take locks for that which an unanswered request holds, so no thread that serves requests does it.
//
// To be told of a name the kernel takes the lock of its folder, which it also holds for most requests about that folder
// until they are answered. A thread cannot be ended while it waits for that lock, not even by SIGKILL. So the names of
// a folder wait while a request about it may take long (`hold`). But a program can keep the lock, too, for as long as
// it likes: it lists the folder into a page that a slow FUSE file system of its own must bring. Therefore:
// - One thread tells, and a second one waits. When the first does not come back for a second, the second takes over,
//   and a new one waits. The first ends when it comes back. The folder's other names wait until then.
// - stop() leaves a thread in the kernel after some seconds.
// - Each thread has file descriptors of its own (`prepare`): with SIGKILL the daemon loses its locks and files,
//   although the thread stays. Its /dev/fuse then stays open, and unanswered requests wait; `ckptfs mount` and `umount`
//   abort the connection (release_hung_mounts in fs/cli/store_daemon.h).
//
// Thread safety: all of it. Lock: of `Shared` (a leaf), never held while the kernel is told.
#pragma once

#include <chrono>
#include <compare>
#include <functional>
#include <memory>
#include <string>

#include "fs/base/counters.h"
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
  struct Patience {
    std::chrono::milliseconds with_one{1000};    // afterwards the next thread takes over
    std::chrono::milliseconds at_the_end{5000};  // afterwards stop() leaves the threads that are in the kernel
  };
  // `tell` reaches the kernel; called on the threads only. `prepare` is called first on each thread.
  Notifications(std::function<void(const Change&)> tell, Counters& counters);
  Notifications(std::function<void(const Change&)> tell, Counters& counters, std::function<void()> prepare,
                Patience patience);
  ~Notifications();
  Notifications(const Notifications&) = delete;
  Notifications& operator=(const Notifications&) = delete;

  void start();
  // Ends the threads. What is still queued is dropped: nobody can look it up any more. False: the kernel does not let
  // go of one. When it returns from `tell`, it uses nothing else of the daemon.
  bool stop();

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
  struct Shared;

  void queue(Change change);

  const std::shared_ptr<Shared> shared_;  // also the threads', which may outlive this object
};

}  // namespace ckptfs::fs
