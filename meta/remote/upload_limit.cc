#include "meta/remote/upload_limit.h"

#include <algorithm>
#include <thread>

namespace ckptfs::meta::remote {

void UploadLimit::set(uint64_t bytes_per_second) {
  const io::MutexLock lock(mutex_);
  rate_.store(bytes_per_second, std::memory_order_relaxed);
  free_at_ = {};  // what was taken at the old rate is no longer waited for
}

void UploadLimit::take(uint64_t bytes, const std::atomic<bool>* stop) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kStep{100};  // so that a stop, or another limit, is seen soon
  const uint64_t rate = this->rate();
  if (rate == 0) return;
  constexpr double kLongest = 24 * 60 * 60;  // seconds; a clock could not count the time of any amount at any rate
  const std::chrono::duration<double> time(std::min(static_cast<double>(bytes) / static_cast<double>(rate), kLongest));
  Clock::time_point until;
  {
    const io::MutexLock lock(mutex_);
    until = std::max(free_at_, Clock::now());
    free_at_ = until + std::chrono::duration_cast<Clock::duration>(time);
  }
  while (Clock::now() < until && this->rate() == rate && (stop == nullptr || !stop->load())) {
    std::this_thread::sleep_for(std::min<Clock::duration>(kStep, until - Clock::now()));
  }
}

}  // namespace ckptfs::meta::remote
