#include "meta/blobs/reaper.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "io/fault.h"
#include "io/log.h"

namespace ckptfs::meta {
namespace {
constexpr std::chrono::seconds kInterval{1};
constexpr size_t kBlobsAtOnce = 4096;  // in one change of the index
}  // namespace

Reaper::Reaper(Index& index, const Blobs& blobs, const Space& space, WriteBack& write_back)
    : index_(index), blobs_(blobs), space_(space), write_back_(write_back) {
  thread_.start([this] { run(); });
}

void Reaper::doom(BlobNumber blob) {
  const auto space = space_.report();
  const bool low = !space || space.value().raw_free < space.value().reserve;
  const io::MutexLock lock(mutex_);
  doomed_.push_back(blob);
  if (low) thread_.wake();
}

void Reaper::doom(const std::vector<BlobNumber>& blobs) {
  const io::MutexLock lock(mutex_);
  doomed_.insert(doomed_.end(), blobs.begin(), blobs.end());
  thread_.wake();
}

void Reaper::run() {
  for (bool last = false; !last;) {
    last = !thread_.wait_for(kInterval);
    io::MutexLock lock(mutex_);
    std::vector<BlobNumber> doomed = std::exchange(doomed_, {});
    lock.unlock();
    round(std::move(doomed));
  }
}

void Reaper::round(std::vector<BlobNumber> doomed) {
  const auto removed = doomed.empty() ? index_.sync() : remove(doomed);
  if (!removed) {
    log::error("what changed is not durable yet, trying again: {}", removed.error().message());
    const io::MutexLock lock(mutex_);
    doomed_.insert(doomed_.end(), doomed.begin(), doomed.end());
  }
  if (const auto space = space_.report()) index_.ballast().restore(space.value().free, space.value().raw_free);
}

// Takes the blobs that are removed out of `doomed`.
Result<> Reaper::remove(std::vector<BlobNumber>& doomed) {
  while (!doomed.empty()) {
    const size_t rest = doomed.size() - std::min(doomed.size(), kBlobsAtOnce);
    TRY(remove_some(std::span(doomed).subspan(rest)));
    doomed.resize(rest);
  }
  return success();
}

Result<> Reaper::remove_some(std::span<const BlobNumber> doomed) {
  TRY(index_.sync());
  TRY(io::fault_point("reaper.before_remove"));
  Batch batch(index_);
  for (const BlobNumber blob : doomed) {
    write_back_.forget(blob);
    TRY(blobs_.remove(blob));
    TRY_ASSIGN(const BlobRecord record, index_.blob(blob));
    batch.erase_blob(blob, record.digest);
  }
  TRY(io::fault_point("reaper.after_remove"));
  TRY(io::fsync_fd(blobs_.folder_fd()));
  return index_.commit(std::move(batch));
}

}  // namespace ckptfs::meta
