#include "fs/adopt/inline_block_dedup.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fs/kernel/request_loop.h"
#include "io/aligned_buffer.h"
#include "io/clone.h"
#include "io/fault.h"
#include "io/log.h"
#include "io/sigbus.h"

namespace ckptfs::fs {

namespace {

constexpr size_t kMostCompared = 64 << 10;  // of the first WRITE, with each candidate

thread_local io::AlignedBuffer present_content;

// Are these bytes at `offset` of the file?
Result<bool> are_there(int descriptor, std::span<const std::byte> data, uint64_t offset) {
  const auto there = present_content.get(data.size());
  if (there.size() < data.size()) return Error(ENOMEM);
  TRY_ASSIGN(const size_t got, io::read_full(descriptor, there.first(data.size()), static_cast<off_t>(offset)));
  return got == data.size() && std::memcmp(there.data(), data.data(), got) == 0;
}

}  // namespace

InlineBlockDedup::~InlineBlockDedup() {
  if (!source_) return;
  const io::MutexLock lock(mutex_);
  window_.close();  // it keeps the source in use
  if (sharing_) environment_.end_sharing(*source_);
  environment_.close(*source_);
}

std::optional<bool> InlineBlockDedup::was_right() {
  const io::MutexLock lock(mutex_);
  if (compared_ == 0) return std::nullopt;
  return mismatched_ <= compared_ / 2;
}

void InlineBlockDedup::give_up(const Error& reason) {
  if (ended_.exchange(true)) return;
  add(counters_.adoption_fallbacks);
  log::warn("{} is written, not adopted: {}", name_, reason.message());
}

DataPath::Written InlineBlockDedup::write(std::span<const std::byte> data, off_t offset, DataPath& plain) {
  const auto parts = find_parts(data, offset, plain.buffered());
  if (parts.empty()) return plain.write(data, offset);
  DataPath::Written written;
  for (const Part& part : parts) {
    const auto at = offset + static_cast<off_t>(part.begin);
    const size_t size = part.end - part.begin;
    if (!part.shared || !share(plain.buffered(), at, size)) {
      auto rest = plain.write(data.subspan(part.begin, size), at);
      if (rest.bytes < size) return {written.bytes + rest.bytes, std::move(rest.error)};
    }
    written.bytes += size;
  }
  return written;
}

// Splits `data` into what the source has too, and what lies between. Empty: all of it is written.
std::vector<InlineBlockDedup::Part> InlineBlockDedup::find_parts(std::span<const std::byte> data, off_t offset,
                                                                 int blob) {
  const auto at = static_cast<uint64_t>(offset);
  const size_t head = (kBlock - at % kBlock) % kBlock;
  if (ended_ || data.size() < head + kSmallestRun) return {};
  const io::MutexLock lock(mutex_);
  auto found = [&]() REQUIRES(mutex_) -> Result<std::vector<Part>> {
    TRY_ASSIGN(const bool there, open_source(data, offset, blob));
    if (!there || !source_->is_unchanged() || file_.allocated) ended_ = true;
    if (ended_) return std::vector<Part>();
    if (!alike_) {
      TRY_ASSIGN(alike_, seems_right(data, at));
      if (!alike_) {
        note_compared(data.size(), data.size());
        expect_samples(at + data.size(), data.size());  // of the next WRITE
        return std::vector<Part>();
      }
    }
    return compare(data, at);
  }();
  if (found) return std::move(found).value();
  give_up(found.error());
  return {};
}

// False: there is no source that can be used.
Result<bool> InlineBlockDedup::open_source(std::span<const std::byte> data, off_t offset, int blob) {
  if (source_) return true;
  const auto candidates = candidates_.size();
  TRY_ASSIGN(const auto chosen, choose(data, offset, blob));
  candidates_.clear();
  if (!chosen) return false;
  TRY_ASSIGN(auto opened, none_if_gone(environment_.open(*chosen)));
  if (!opened) return false;
  source_ = std::move(opened);
  TRY_ASSIGN(const struct stat st, io::stat_fd(source_->descriptor));
  source_size_ = static_cast<uint64_t>(st.st_size);
  alike_ = candidates > 1;
  if (!alike_) expect_samples(static_cast<uint64_t>(offset), data.size());
  return true;
}

Result<std::optional<InodeNumber>> InlineBlockDedup::choose(std::span<const std::byte> data, off_t offset,
                                                            int blob) const {
  if (candidates_.size() == 1) return std::optional(candidates_.front());
  TRY_ASSIGN(const struct stat own, io::stat_fd(blob));
  const auto begin = data.first(std::min(data.size(), kMostCompared));
  for (const InodeNumber candidate : candidates_) {
    TRY_ASSIGN(const auto descriptor, none_if_gone(environment_.open_uncounted(candidate)));
    if (!descriptor) continue;
    TRY_ASSIGN(const struct stat st, io::stat_fd(descriptor->get()));
    if (own.st_size > 0 && st.st_size != own.st_size) continue;
    TRY_ASSIGN(const bool same, are_there(descriptor->get(), begin, static_cast<uint64_t>(offset)));
    if (same) return std::optional(candidate);
  }
  return std::optional<InodeNumber>();
}

// Does the source hold at least half of `data`? Tells by samples. After each no there are fewer of them.
Result<bool> InlineBlockDedup::seems_right(std::span<const std::byte> data, uint64_t offset) {
  size_t equal = 0, looked_at = 0;
  for (uint64_t at = next_sample(offset); at < offset + data.size(); at += sampled_, ++looked_at) {
    const auto rest = data.subspan(at - offset);
    TRY_ASSIGN(const bool same, are_there(source_->descriptor, rest.first(std::min(kBlock, rest.size())), at));
    if (same) ++equal;
  }
  if (looked_at == 0) return false;
  const bool right = equal * 2 >= looked_at;
  sampled_ = right ? kSampled : std::min(2 * sampled_, kMostSampled);
  return right;
}

// The first sample at `offset` or behind it.
uint64_t InlineBlockDedup::next_sample(uint64_t offset) const { return (offset + sampled_ - 1) / sampled_ * sampled_; }

// Starts to read all samples from the disk at the same time, and does not wait for them.
void InlineBlockDedup::expect_samples(uint64_t offset, size_t size) const {
  for (uint64_t at = next_sample(offset); at < offset + size; at += sampled_) {
    ::posix_fadvise(source_->descriptor, static_cast<off_t>(at), kBlock, POSIX_FADV_WILLNEED);
  }
}

void InlineBlockDedup::note_compared(uint64_t all, uint64_t mismatched) {
  compared_ += all;
  mismatched_ += mismatched;
  if (mismatched_ >= kPatience && mismatched_ > compared_ / 2) ended_ = true;
}

// `blocks` are whole blocks at `offset` of the file. Which of them does the source have there?
Result<InlineBlockDedup::Equal> InlineBlockDedup::find_equal(std::span<const std::byte> blocks, uint64_t offset) {
  static_assert(kMostBlocks >= RequestLoop::kLargestWrite / kBlock);
  Equal equal;
  if (blocks.empty()) return equal;
  TRY(io::fault_point("adopt.read"));
  TRY_ASSIGN(const auto there, window_.at(source_->descriptor, offset, blocks.size()));
  const bool read = io::access_mapped([&] {
    for (size_t at = 0; at < blocks.size(); at += kBlock) {
      equal[at / kBlock] = std::memcmp(blocks.data() + at, there.data() + at, kBlock) == 0;
    }
  });
  if (read) return equal;
  if (source_->is_unchanged()) return Error(EIO, "what it was expected to hold cannot be read");
  return Equal();  // it has become shorter
}

// Finds runs of whole blocks that the source has too.
Result<std::vector<InlineBlockDedup::Part>> InlineBlockDedup::compare(std::span<const std::byte> data,
                                                                      uint64_t offset) {
  const size_t head = std::min(data.size(), (kBlock - offset % kBlock) % kBlock);
  const uint64_t there = std::min<uint64_t>(data.size(), source_size_ > offset ? source_size_ - offset : 0);
  const size_t last = head + (there > head ? (there - head) / kBlock * kBlock : 0);
  TRY_ASSIGN(const Equal equal, find_equal(data.subspan(head, last - head), offset + head));
  std::vector<Part> found;
  size_t written = 0, shared = 0;  // where what is written begins, and how much is shared
  for (size_t begin = head; begin < last;) {
    const auto is_equal = [&](size_t at) { return equal[(at - head) / kBlock]; };
    size_t end = begin + kBlock;
    while (end < last && is_equal(end) == is_equal(begin)) end += kBlock;
    if (is_equal(begin) && end - begin >= kSmallestRun) {
      if (begin > written) found.push_back({written, begin, false});
      found.push_back({begin, end, true});
      shared += end - begin;
      written = end;
    }
    begin = end;
  }
  if (data.size() > written) found.push_back({written, data.size(), false});
  if (shared > 0 && !sharing_) {
    TRY(environment_.begin_sharing(*source_));
    sharing_ = true;
  }
  // At its borders a WRITE that is the same has blocks that are written all the same.
  note_compared(data.size(), shared == 0 ? data.size() : last - head - shared);
  strange_ = shared == 0 ? strange_ + data.size() : 0;
  if (strange_ >= kStreak) {
    alike_ = false;
    strange_ = 0;
  }
  return found;
}

// False: these bytes must be written.
bool InlineBlockDedup::share(int blob, off_t offset, size_t size) {
  if (!source_->is_unchanged() || file_.allocated) ended_ = true;
  if (ended_) return false;
  if (const auto ready = offset > 0 ? environment_.write_out_before(blob, offset) : Result<>(success()); !ready) {
    give_up(ready.error());
    return false;
  }
  Result<> cloned = io::fault_point("adopt.clone_range");
  if (cloned) cloned = io::clone_range(source_->descriptor, offset, blob, offset, size);
  if (cloned) cloned = io::fault_point("adopt.clone_range_end");
  const bool there = cloned.has_value();
  const auto shared = environment_.check(*source_, std::move(cloned));
  const bool same = source_->is_unchanged();  // an open for writing is counted before its writer can write
  if (shared && same) {
    add(counters_.bytes_adopted, size);
    if (!counted_.exchange(true)) add(counters_.adoptions);
    return true;
  }
  if (!shared) give_up(shared.error());
  ended_ = true;
  if (there || !same) withdraw(blob, offset, size);  // a clone that fails may have shared a part
  return false;
}

// The source may have changed before it was shared. Its bytes must not stay here if the write that replaces them fails.
void InlineBlockDedup::withdraw(int blob, off_t offset, size_t size) const {
  constexpr int kMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (::fallocate(blob, kMode, offset, static_cast<off_t>(size)) == 0) return;
  log::error("{}: {} bytes from {} on, are another file's until they are written: {}", name_, size, offset,
             std::strerror(errno));
}

}  // namespace ckptfs::fs
