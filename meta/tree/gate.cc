#include "meta/tree/gate.h"

namespace ckptfs::meta {

Gate::Pass::~Pass() {
  if (gate_ != nullptr) gate_->leave(epoch_);
}

Gate::Pass Gate::enter(std::initializer_list<InodeNumber> inodes, std::function<void()> retry) {
  const io::MutexLock lock(mutex_);
  if (closed_) {
    for (const InodeNumber inode : inodes) {
      if (!guarded_.contains(inode)) continue;
      parked_.push_back(std::move(retry));
      return {};
    }
  }
  ++in_flight_[epoch_];
  return Pass(this, epoch_);
}

void Gate::leave(unsigned epoch) {
  const io::MutexLock lock(mutex_);
  if (--in_flight_[epoch] == 0) idle_.notify_all();
}

void Gate::close(std::unordered_set<InodeNumber> inodes) {
  io::MutexLock lock(mutex_);
  closed_ = true;
  guarded_ = std::move(inodes);
  const unsigned before = epoch_;
  epoch_ ^= 1U;
  idle_.wait(mutex_, [this, before]() REQUIRES(mutex_) { return in_flight_[before] == 0; });
}

void Gate::open() {
  std::vector<std::function<void()>> parked;
  {
    const io::MutexLock lock(mutex_);
    closed_ = false;
    guarded_.clear();
    parked.swap(parked_);
  }
  for (const auto& retry : parked) retry();
}

}  // namespace ckptfs::meta
