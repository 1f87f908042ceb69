// The threads that serve a session's requests. They do what libfuse's own loop (fuse_session_loop_mt) does, but each
// thread receives into memory of ours on huge pages. There the payload of a WRITE lies at the same place within its
// page as in the file, so O_DIRECT writes it from there. The kernel also pins one large page much faster than 256 small
// ones.
//
// A thread is added whenever a request arrives and no other thread waits for the next, up to a limit. None ends before
// the session does.
//
// *One at a time.* While requests come one at a time, each soon after the last (a copy by READs and WRITEs of 64 KiB
// each), most of their time goes into waking processors. run() then keeps the processors from halting
// (io/wake_latency.h), until a second after. Requests over io_uring (Linux 6.14), which arrive on the caller's
// processor, were no quicker on 2 cores: tried with a thread for each processor, and with one for each request.
//
// Thread safety: stop() from any thread, at any time; run() once.
#pragma once

#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include "io/mutex.h"
#include "io/result.h"

namespace ckptfs::fs {

class RequestLoop {
 public:
  static constexpr size_t kPage = 4096;
  // Largest write that the receive memory has room for.
  static constexpr size_t kLargestWrite = (size_t{1} << 20) + 4096;

  // How many threads suit this machine. A device with latency wants many (at 8 ms a request 32 carry three times what 8
  // do); few processors want few, whose memory stays in their caches (with 2, 8 carry a tenth more than 32).
  static unsigned suitable();

  // The payload of a WRITE: `data` is where libfuse takes it to be. Valid while the request is served.
  static std::span<const std::byte> payload_of(const char* data);

  RequestLoop(fuse_session* session, unsigned most) : session_(session), most_(most) {}

  // Serves until the session exits: it was unmounted, its connection was cut, stop(), or a request could not be
  // received (the error). All threads have ended then.
  Result<> run();
  // Ends the session: threads that wait for requests end at once, others after the one they serve.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  Result<> add_thread() REQUIRES(mutex_);
  void wait_for_end() REQUIRES(mutex_);
  void note_arrival() REQUIRES(mutex_);
  void serve();
  void serve_one(fuse_buf& request);

  fuse_session* const session_;
  const unsigned most_;

  io::Mutex mutex_;
  io::CondVar changed_;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // only ever grows until run() joins them
  unsigned serving_ GUARDED_BY(mutex_) = 0;              // threads that have not ended
  unsigned waiting_ GUARDED_BY(mutex_) = 0;              // of these, waiting for a request
  bool stopped_ GUARDED_BY(mutex_) = false;
  Result<> outcome_ GUARDED_BY(mutex_) = success();

  Clock::time_point arrived_ GUARDED_BY(mutex_);   // the last request
  unsigned one_at_a_time_ GUARDED_BY(mutex_) = 0;  // requests that did, one after another
  bool prompt_ GUARDED_BY(mutex_) = false;         // enough of them, since the last look
};

}  // namespace ckptfs::fs
