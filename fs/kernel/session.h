// The session with the kernel: mounting, the handshake, the loop of workers, and its end.
//
// Thread safety: stop() may be called from any thread and from a signal handler; everything else from one thread.
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "fs/kernel/request_loop.h"
#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::fs {

class Session {
 public:
  struct Options {
    std::string mountpoint;
    std::string source;      // what `mount` shows as the device
    bool for_others = true;  // may other users look into it?
    bool read_only = false;
    bool no_exec = false;
  };

  // `user_data` is what fuse_req_userdata gives the operations. Nothing is mounted yet.
  static Result<std::unique_ptr<Session>> make(const Options& options, const fuse_lowlevel_ops& ops, void* user_data);
  ~Session();

  // Mounts, and answers FUSE_INIT: afterwards the kernel's offers are known and backing files can be tried, while all
  // other requests still wait. The `init` operation ends this by fuse_session_exit.
  Result<> mount();
  // After mount(): sets how far the kernel reads ahead in what it caches, as in files of views that the daemon reads.
  // With the kernel's default of 128 KiB each request is as small as that, and a file takes three times as long. If it
  // cannot be set, reads are slower, but right.
  Result<> read_far_ahead() const;

  fuse_session* get() const { return session_.get(); }

  // Serves requests until the file system is unmounted, the connection is cut, or stop().
  Result<> loop();
  // Unmounts. Files that are still open are served for a while (kGrace); then the loop ends all the same.
  // Async-signal-safe.
  void stop();

  // After the loop. If it was forced to end, requests are left that nobody will answer. Makes them fail now, so that no
  // thread waits for them in the kernel, also none of ours that tells it of a changed name.
  void release() const;
  // A thread is still in the kernel with a call of libfuse, and may come back: keeps the memory that it then uses.
  void leave_to_thread() { left_to_thread_ = true; }
  // After the loop: has the kernel let go of the mount, or did we leave with files open?
  bool was_forced() const { return forced_; }

 private:
  struct Deleter {
    void operator()(fuse_session* session) const { fuse_session_destroy(session); }
  };

  Session(const Options& options, io::Fd wake) : options_(options), wake_(std::move(wake)) {}
  void wait_for_stop();
  void unmount_or_detach() const;
  bool loop_ends_within(int milliseconds) const;

  static constexpr int kGraceMilliseconds = 10000;

  const Options options_;
  const io::Fd wake_;  // eventfd: stop() writes to it
  std::unique_ptr<fuse_session, Deleter> session_;
  std::string device_;  // of the mount, from mount() on
  std::optional<RequestLoop> request_loop_;
  std::thread stopper_;
  std::atomic<bool> loop_ended_{false};
  std::atomic<bool> forced_{false};
  bool left_to_thread_ = false;
};

}  // namespace ckptfs::fs
