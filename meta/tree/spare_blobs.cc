#include "meta/tree/spare_blobs.h"

#include <algorithm>
#include <utility>

#include "io/fault.h"
#include "io/log.h"
#include "meta/tree/unpublished.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kMost = 16384;  // 8 MiB of XFS's inodes
constexpr const char* kWhat = "empty blobs";
}  // namespace

SpareBlobs::SpareBlobs(Tree& tree, const Blobs& blobs) : tree_(tree), blobs_(blobs) {
  thread_.start([this] { run(); });
}

std::vector<BlobNumber> SpareBlobs::take(size_t count) {
  const io::MutexLock lock(mutex_);
  count = std::min(count, ready_.size());
  const auto first = ready_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<BlobNumber> taken(first, ready_.end());
  ready_.erase(first, ready_.end());
  return taken;
}

void SpareBlobs::prepare(size_t count) {
  {
    const io::MutexLock lock(mutex_);
    // A save that follows at once, and clones nothing, takes nothing from what is still wanted.
    wanted_ = std::max(wanted_, std::min(count, kMost));
  }
  thread_.wake();
}

size_t SpareBlobs::ready() const {
  const io::MutexLock lock(mutex_);
  return ready_.size();
}

void SpareBlobs::stop() {
  thread_.stop();
  doom_unpublished(tree_, take(kMost), kWhat);
}

void SpareBlobs::run() {
  while (thread_.wait()) {
    io::MutexLock lock(mutex_);
    const size_t wanted = std::exchange(wanted_, 0), ready = ready_.size();
    lock.unlock();
    if (wanted > ready) make(wanted - ready);
  }
}

// After a failure there are fewer spare blobs, or none. Saves then create the blobs that they need, and report their
// own failures.
void SpareBlobs::make(size_t count) {
  const auto numbers = promise_blobs(tree_, count);
  if (!numbers) {
    log::warn("no blobs are made ahead of the next save: {}", numbers.error().message());
    return;
  }
  auto at = numbers.value().begin();
  for (; at != numbers.value().end() && !thread_.is_stopping(); ++at) {
    if (const auto created = create(*at); !created) {
      log::warn("fewer blobs than the last save took are made ahead of the next: {}", created.error().message());
      break;
    }
    const io::MutexLock lock(mutex_);
    ready_.push_back(*at);
  }
  doom_unpublished(tree_, {at, numbers.value().end()}, kWhat);
}

Result<> SpareBlobs::create(BlobNumber number) const {
  TRY(io::fault_point("spares.create"));
  TRY(blobs_.create(number));
  return success();
}

}  // namespace ckptfs::meta
