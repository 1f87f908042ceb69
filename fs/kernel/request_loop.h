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
// (io/wake_latency.h), until a second after.
//
// *In lockstep.* While WRITEs of one caller come so, and an adoption takes each of them whole
// (fs/adopt/speculative_clone.h), a single thread waits for requests and the others rest. If several waited, the kernel
// would wake each in turn, only to find that the thread which served the last request took this one, too, and none
// would find its data in its caches. Whatever else arrives, except a plain WRITE of that caller, ends the lockstep
// before it is served. So does a request that takes a few milliseconds.
//
// Thread safety: stop() from any thread, at any time; run() once.
#pragma once

#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <chrono>
#include <list>
#include <span>
#include <thread>

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

  // What the loop and the operation that serves a WRITE tell each other. Valid while the request is served.
  struct Write {
    std::span<const std::byte> payload;
    bool in_lockstep = false;  // the same thread will serve the next request
    bool adopted = false;      // to be set if an adoption took all of it: the writer probably sends the next at once
  };
  // It lies where libfuse takes the payload to be.
  static Write& write_of(const char* data);

  RequestLoop(fuse_session* session, unsigned most) : session_(session), most_(most) {}

  // Serves until the session exits: it was unmounted, its connection was cut, stop(), or a request could not be
  // received (the error). All threads have ended then.
  Result<> run();
  // Ends the session: threads that wait for requests end at once, others after the one they serve.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Worker {
    std::thread thread;
    bool waiting GUARDED_BY(&RequestLoop::mutex_) = true;  // for a request
  };

  Result<> add_thread() REQUIRES(mutex_);
  void wake_one() REQUIRES(mutex_);
  void wait_for_end() REQUIRES(mutex_);
  void note_arrival(const fuse_in_header& request) REQUIRES(mutex_);
  void note_served(uint32_t caller, bool adopted) REQUIRES(mutex_);
  void end_lockstep() REQUIRES(mutex_);
  void check_lockstep() REQUIRES(mutex_);
  void serve(Worker& self);
  bool serve_one(Worker& self, fuse_buf& request);
  void rest_in_lockstep(Worker& self) REQUIRES(mutex_);

  fuse_session* const session_;
  const unsigned most_;

  io::Mutex mutex_;
  io::CondVar changed_;
  io::CondVar woken_;
  std::list<Worker> workers_ GUARDED_BY(mutex_);  // only ever grows until run() joins them
  unsigned serving_ GUARDED_BY(mutex_) = 0;       // threads that have not ended
  unsigned waiting_ GUARDED_BY(mutex_) = 0;       // of these, waiting for a request, or woken to
  unsigned resting_ GUARDED_BY(mutex_) = 0;       // of these, until they are woken
  unsigned wakes_ GUARDED_BY(mutex_) = 0;         // that nobody has noticed yet
  bool stopped_ GUARDED_BY(mutex_) = false;
  Result<> outcome_ GUARDED_BY(mutex_) = success();

  Clock::time_point arrived_ GUARDED_BY(mutex_);    // the last request
  uint32_t caller_ GUARDED_BY(mutex_) = 0;          // the thread that made it
  unsigned one_at_a_time_ GUARDED_BY(mutex_) = 0;   // requests that did, one after another
  unsigned adopted_writes_ GUARDED_BY(mutex_) = 0;  // of one caller, one after another: Write::adopted
  bool prompt_ GUARDED_BY(mutex_) = false;          // enough of them, since the last look
  bool lockstep_ GUARDED_BY(mutex_) = false;        // enough steps
  bool awake_ GUARDED_BY(mutex_) = false;           // the processors are kept from halting
};

}  // namespace ckptfs::fs
