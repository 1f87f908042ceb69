#include "meta/accounting/extent_cache.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "io/extents.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {

constexpr uint64_t kTick = 20'000'000;  // ns; longer than any tick of the kernel's clock for files

bool same(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_blocks == b.st_blocks && nanoseconds(a.st_ctim) == nanoseconds(b.st_ctim);
}

}  // namespace

Result<> ExtentCache::for_each(BlobNumber number, Blob kind, const std::function<void(const Run&)>& visit) {
  if (const auto runs = remembered(number, kind)) {
    for (const Run& run : *runs) visit(run);
    return success();
  }
  if (kind == Blob::busy) {  // an empty blob has no extents; thousands of these are made ahead of a save
    const auto stat = blobs_.stat(number);
    if (stat && stat.value().st_blocks == 0) return success();
  }
  uint64_t forgotten = 0;
  {
    const io::MutexLock lock(mutex_);
    ++counts_.reads;
    forgotten = forgotten_;
  }
  const uint64_t begun = nanoseconds(now());
  const auto fd = blobs_.open(number, O_RDONLY);
  if (!fd) return fd.error().errno_value() == ENOENT ? Result<>(success()) : Result<>(fd.error());
  Entry entry;
  TRY_ASSIGN(entry.stat, io::stat_fd(fd.value().get()));
  bool fits = kind == Blob::frozen || (kind == Blob::idle && nanoseconds(entry.stat.st_ctim) + kTick < begun);
  std::vector<Run> runs;
  uint64_t end = 0;
  TRY(io::for_each_extent(fd.value().get(), io::WriteBack::first, [&](const io::Extent& extent) -> Result<> {
    const Run run{extent.located ? extent.physical : kNoPlace, extent.length};
    visit(run);
    end = extent.logical + extent.length;
    fits = fits && extent.located && runs.size() * sizeof(Run) < budget_ / 8;
    if (fits) runs.push_back(run);
    return success();
  }));
  if (!fits) return success();
  runs.shrink_to_fit();
  const auto size = static_cast<uint64_t>(entry.stat.st_size), block = static_cast<uint64_t>(entry.stat.st_blksize);
  entry.frozen = kind == Blob::frozen && end < size + block;
  entry.runs = std::make_shared<const std::vector<Run>>(std::move(runs));
  remember(number, std::move(entry), forgotten);
  return success();
}

std::shared_ptr<const std::vector<ExtentCache::Run>> ExtentCache::remembered(BlobNumber number, Blob kind) {
  Entry entry;
  {
    const io::MutexLock lock(mutex_);
    const auto found = entries_.find(number);
    if (found == entries_.end()) return nullptr;
    entry = found->second;
  }
  if (!entry.frozen || kind != Blob::frozen) {
    const auto stat = blobs_.stat(number);
    if (!stat || !same(stat.value(), entry.stat)) return nullptr;
  }
  const io::MutexLock lock(mutex_);
  ++counts_.hits;
  return entry.runs;
}

void ExtentCache::remember(BlobNumber number, Entry entry, uint64_t forgotten) {
  const io::MutexLock lock(mutex_);
  if (forgotten != forgotten_) return;  // this blob may be the one that was forgotten meanwhile
  if (const auto before = entries_.find(number); before != entries_.end()) erase(before);
  if (counts_.bytes + entry.bytes() > budget_) return;
  counts_.bytes += entry.bytes();
  entries_.emplace(number, std::move(entry));
}

void ExtentCache::erase(std::unordered_map<BlobNumber, Entry>::iterator at) {
  counts_.bytes -= at->second.bytes();
  entries_.erase(at);
}

void ExtentCache::forget(BlobNumber number) {
  const io::MutexLock lock(mutex_);
  ++forgotten_;
  if (const auto found = entries_.find(number); found != entries_.end()) erase(found);
}

void ExtentCache::keep(std::span<const BlobNumber> blobs) {
  const io::MutexLock lock(mutex_);
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    if (!std::binary_search(blobs.begin(), blobs.end(), at->first)) erase(at);
    at = next;
  }
}

ExtentCache::Counts ExtentCache::counts() const {
  const io::MutexLock lock(mutex_);
  return counts_;
}

}  // namespace ckptfs::meta
