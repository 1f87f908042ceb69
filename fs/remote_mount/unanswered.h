// Requests that wait for the network. When a caller is interrupted, as by Ctrl-C, the kernel says so, and the request
// is answered EINTR at once; what was to answer it later finds it answered.
//
// A READ is answered so only if the signal is to end the caller. It may serve a fault of a mapping, and a process whose
// child has ended, or whose alarm rings, must not get SIGBUS for that. Of READs that the kernel sends ahead of a reader
// it says nothing. So a reader who catches Ctrl-C waits until the READ ends by itself.
//
// The kernel's word and the answer may come at the same moment. So libfuse is given a number, not a pointer. The kernel
// says it for each signal that has a handler, not for Ctrl-C only, and only once for a request.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "io/mutex.h"

namespace ckptfs::fs::remote_mount {

class Unanswered {
 public:
  struct Entry {
    fuse_req_t request = nullptr;
    uint64_t number = 0;  // 0: it cannot be interrupted
    pid_t thread = 0;     // of the caller; 0: it is in another pid namespace
    bool reads = false;
    std::atomic<bool> answered{false};
  };

  // From here on the request can be interrupted. If it was already, it is answered before this returns. The kernel's
  // word comes to `on_interrupt`, which calls interrupt() with the number that it is given.
  void add(const std::shared_ptr<Entry>& entry, fuse_interrupt_func_t on_interrupt);
  void interrupt(uint64_t number);
  void remove(uint64_t number);

 private:
  io::Mutex mutex_;
  uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Entry>> entries_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs::remote_mount
