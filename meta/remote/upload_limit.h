// At most so many bytes a second, for all that share it. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "io/mutex.h"

namespace ckptfs::meta::remote {

class UploadLimit {
 public:
  // 0: no limit.
  explicit UploadLimit(uint64_t bytes_per_second = 0) : rate_(bytes_per_second) {}
  void set(uint64_t bytes_per_second);
  uint64_t rate() const { return rate_.load(std::memory_order_relaxed); }
  // Waits until so many bytes may go; returns early when `stop` is set.
  void take(uint64_t bytes, const std::atomic<bool>* stop);

 private:
  std::atomic<uint64_t> rate_;
  io::Mutex mutex_;
  std::chrono::steady_clock::time_point free_at_ GUARDED_BY(mutex_);  // when all that was taken has gone
};

}  // namespace ckptfs::meta::remote
