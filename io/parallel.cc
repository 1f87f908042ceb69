#include "io/parallel.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "io/mutex.h"

namespace ckptfs::io {

namespace {

// One call of for_each_parallel. Thread safety: each of its threads calls run().
class Loop {
 public:
  Loop(size_t count, const std::function<Result<>(size_t)>& work) : count_(count), work_(work) {}

  void run() {
    while (!stopped_.load(std::memory_order_relaxed)) {
      const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count_) return;
      Result<> done = work_(index);
      if (!done) stop(std::move(done).error());
    }
  }

  // Call this once all threads have ended.
  Result<> result() {
    const MutexLock lock(mutex_);
    if (error_) return std::move(*error_);
    return success();
  }

 private:
  void stop(Error error) {
    const MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
    stopped_ = true;
  }

  const size_t count_;
  const std::function<Result<>(size_t)>& work_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  Mutex mutex_;
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

}  // namespace

Result<> for_each_parallel(size_t count, unsigned threads, const std::function<Result<>(size_t)>& work) {
  Loop loop(count, work);
  {
    const size_t helpers = std::min<size_t>(threads, count);
    std::vector<std::jthread> pool;
    try {
      for (size_t i = 1; i < helpers; ++i) pool.emplace_back([&loop] { loop.run(); });
    } catch (const std::system_error&) {
      // No more threads can be made. Those that exist, and the caller, do all of the work.
    }
    loop.run();
  }
  return loop.result();
}

}  // namespace ckptfs::io
