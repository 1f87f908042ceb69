#include "meta/tree/spare_blobs.h"

#include <algorithm>

#include "io/fault.h"
#include "io/log.h"
#include "meta/tree/unpublished.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kMost = 16384;  // 8 MiB of XFS's inodes
constexpr const char* kWhat = "empty blobs";
}  // namespace

SpareBlobs::SpareBlobs(Tree& tree, const Blobs& blobs) : tree_(tree), blobs_(blobs), thread_([this] { run(); }) {}

SpareBlobs::~SpareBlobs() { end_thread(); }

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
    wanted_ = std::min(count, kMost);
  }
  wake_.notify_one();
}

size_t SpareBlobs::ready() const {
  const io::MutexLock lock(mutex_);
  return ready_.size();
}

void SpareBlobs::stop() {
  end_thread();
  doom_unpublished(tree_, take(kMost), kWhat);
}

void SpareBlobs::end_thread() {
  {
    const io::MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void SpareBlobs::run() {
  io::MutexLock lock(mutex_);
  while (true) {
    wake_.wait(mutex_, [this]() REQUIRES(mutex_) { return stopping_ || wanted_ > ready_.size(); });
    if (stopping_) return;
    const size_t missing = wanted_ - ready_.size();
    wanted_ = 0;
    lock.unlock();
    make(missing);
    lock.lock();
  }
}

// After a failure there are fewer spare blobs, or none. Saves then create the blobs that they need, and report their
// own failures.
void SpareBlobs::make(size_t count) {
  const auto numbers = allot(count);
  if (!numbers) {
    log::warn("no blobs are made ahead of the next save: {}", numbers.error().message());
    return;
  }
  auto at = numbers.value().begin();
  for (; at != numbers.value().end() && !is_stopping(); ++at) {
    if (const auto created = create(*at); !created) {
      log::warn("fewer blobs than the last save took are made ahead of the next: {}", created.error().message());
      break;
    }
    const io::MutexLock lock(mutex_);
    ready_.push_back(*at);
  }
  doom_unpublished(tree_, {at, numbers.value().end()}, kWhat);
}

bool SpareBlobs::is_stopping() const {
  const io::MutexLock lock(mutex_);
  return stopping_;
}

Result<> SpareBlobs::create(BlobNumber number) const {
  TRY(io::fault_point("spares.create"));
  TRY(blobs_.create(number));
  return success();
}

Result<std::vector<BlobNumber>> SpareBlobs::allot(size_t count) {
  Tree::Change change = tree_.begin();
  std::vector<BlobNumber> numbers(count);
  BlobNumber next = change.allot_blobs(count);
  for (BlobNumber& number : numbers) {
    number = next++;
    change.batch.put_blob(number, {.state = BlobState::tentative, .references = 0});
  }
  TRY(tree_.commit(std::move(change)));
  return numbers;
}

}  // namespace ckptfs::meta
