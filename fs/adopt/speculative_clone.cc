#include "fs/adopt/speculative_clone.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "fs/kernel/request_loop.h"
#include "io/aligned_buffer.h"
#include "io/clone.h"
#include "io/fault.h"
#include "io/log.h"
#include "io/sigbus.h"
#include "meta/blobs/blobs.h"
#include "meta/time.h"

namespace ckptfs::fs {

namespace {

constexpr uint64_t kStreak = uint64_t{1} << 20;  // wrong bytes, one after another, before a clone is dropped
constexpr unsigned kMostClones = 16;             // of one file, since each walks all extents that follow

thread_local io::AlignedBuffer compared_with;

// `size` bytes are written at `offset` of the file. Returns where, in these bytes, the file's block ends that contains
// byte `at`.
size_t block_end(uint64_t offset, size_t at, size_t size) {
  return std::min(size, at + SpeculativeClone::kBlock - (offset + at) % SpeculativeClone::kBlock);
}

template <size_t kMost>
void find_differing(std::span<const std::byte> data, const std::byte* there, uint64_t offset,
                    std::bitset<kMost>& differing) {
  for (size_t at = 0, block = 0; at < data.size(); ++block) {
    const size_t end = block_end(offset, at, data.size());
    differing[block] = std::memcmp(data.data() + at, there + at, end - at) != 0;
    at = end;
  }
}

}  // namespace

void SpeculativeClone::prepare(io::Fd blob, meta::BlobNumber number) {
  blob_ = std::move(blob);
  number_ = number;
}

// Makes the blob go on as the source does, from the first whole block of `data` on. Writes the bytes before that block,
// and returns how many they are. None: `data` has no whole block, or the clone cannot be made (then ending_ is set).
Result<std::optional<size_t>> SpeculativeClone::start(std::span<const std::byte> data, uint64_t written_end) {
  const size_t head = (kBlock - written_end % kBlock) % kBlock;
  if (head + kBlock > data.size()) return std::optional<size_t>();
  const bool first = !slot_;
  const auto started = [&]() REQUIRES(mutex_) -> Result<bool> {
    TRY_ASSIGN(const struct stat before, io::stat_fd(blob_.get()));
    if (static_cast<uint64_t>(before.st_size) != written_end) return false;  // a WRITE before this one failed
    if (!slot_) {
      TRY_ASSIGN(auto slot, written_ends_.take(number_));
      if (!slot) return Error(EAGAIN, "too many copies at the same time");
      slot_ = std::move(*slot);
    }
    TRY(io::write_full(blob_.get(), data.first(head), static_cast<off_t>(written_end)));
    TRY(slot_.set(written_end + head));
    written_ = meta::now();
    written_end_.store(written_end + head, std::memory_order_release);
    adopting_.store(true, std::memory_order_release);
    TRY(meta::Blobs::set_unsettled(blob_.get(), true));
    TRY(io::fault_point("adopt.clone"));
    const auto border = static_cast<off_t>(written_end + head);
    TRY(shared_(io::clone_range(source_.descriptor, border, blob_.get(), border, 0)));
    TRY_ASSIGN(const struct stat st, io::stat_fd(blob_.get()));
    clone_size_ = static_cast<uint64_t>(st.st_size);
    return true;
  }();
  if (started && started.value()) {
    if (first) add(counters_.adoptions);
    ++clones_;
    strange_ = 0;
    return std::optional(head);
  }
  ending_ = true;
  if (!started) {
    add(counters_.adoption_fallbacks);
    log::warn("{} is copied, not adopted: {}", name_, started.error().message());
    // On an error the file still ends at the written end. The blob is truncated when that succeeds.
    clone_size_ = UINT64_MAX;
    TRY(io::fault_point("adopt.undo"));
  }
  return std::optional<size_t>();
}

std::optional<uint64_t> SpeculativeClone::size() const {
  if (!adopting_.load(std::memory_order_acquire)) return std::nullopt;
  return written_end_.load(std::memory_order_acquire);
}

DataPath::Written SpeculativeClone::write(std::span<const std::byte> data, off_t offset) {
  const io::MutexLock lock(mutex_);
  if (!blob_) return {};
  const uint64_t written_end = written_end_.load(std::memory_order_relaxed);
  const bool hopeless = mismatched_ >= kPatience && is_wrong();
  DataPath::Written written;
  if (!hopeless && !ending_ && static_cast<uint64_t>(offset) == written_end) {
    if (!adopting_.load(std::memory_order_relaxed)) {
      const auto begun = begin(data, written_end);
      if (!begun) return {0, begun.error()};
      if (!begun.value() && !ending_) return {};
      written.bytes = begun.value().value_or(0);
    }
    if (!ending_) {
      const auto rest = data.subspan(written.bytes);
      const uint64_t at = written_end + written.bytes;
      const auto compared = compare(rest.first(std::min<uint64_t>(rest.size(), clone_size_ - at)), at);
      written = {written.bytes + compared.bytes, compared.error};
    }
  }
  if (written.error || written.bytes == data.size()) return written;
  if (auto ended = truncate_locked(); !ended) written.error = ended.error();
  return written;
}

// Starts the clone if the source seems to hold at least half of `data`; see start(). None without ending_: the clone is
// not started, and the caller writes `data`.
Result<std::optional<size_t>> SpeculativeClone::begin(std::span<const std::byte> data, uint64_t written_end) {
  const auto right = seems_right(data, written_end);
  if (!right) {
    source_unreadable(right.error());
    return std::optional<size_t>();
  }
  if (right.value()) {
    TRY_ASSIGN(const auto started, start(data, written_end));
    if (started || ending_) return started;
  }
  compared_ += data.size();
  mismatched_ += data.size();
  written_end_.store(written_end + data.size(), std::memory_order_release);
  expect_samples(written_end + data.size(), data.size());  // of the next WRITE
  return std::optional<size_t>();
}

// Does the source hold at least half of `data`? Tells by samples. After each no there are fewer of them, since the
// source may have to be read from the disk.
Result<bool> SpeculativeClone::seems_right(std::span<const std::byte> data, uint64_t written_end) {
  if (compared_ == 0) expect_samples(written_end, data.size());
  const auto room = compared_with.get(kBlock);
  if (room.size() < kBlock) return Error(ENOMEM);
  size_t equal = 0, looked_at = 0;
  for (uint64_t at = next_sample(written_end); at < written_end + data.size(); at += sampled_, ++looked_at) {
    const auto block = data.subspan(at - written_end).first(std::min(kBlock, data.size() - (at - written_end)));
    TRY_ASSIGN(const size_t got, io::read_full(source_.descriptor, room.first(block.size()), static_cast<off_t>(at)));
    if (got == block.size() && std::memcmp(block.data(), room.data(), got) == 0) ++equal;
  }
  if (looked_at == 0) return false;
  const bool right = equal * 2 >= looked_at;
  sampled_ = right ? kSampled : std::min(2 * sampled_, kMostSampled);
  return right;
}

// The first sample at `offset` or behind it.
uint64_t SpeculativeClone::next_sample(uint64_t offset) const { return (offset + sampled_ - 1) / sampled_ * sampled_; }

// Starts to read all samples from the disk at the same time, and does not wait for them.
void SpeculativeClone::expect_samples(uint64_t offset, size_t size) const {
  for (uint64_t at = next_sample(offset); at < offset + size; at += sampled_) {
    ::posix_fadvise(source_.descriptor, static_cast<off_t>(at), kBlock, POSIX_FADV_WILLNEED);
  }
}

// The writer does not need the source, so this is no error for it: from now on the file is written plainly.
void SpeculativeClone::source_unreadable(const Error& error) {
  ending_ = true;
  add(counters_.adoption_fallbacks);
  log::warn("{} is written on plainly: what it was expected to hold cannot be read: {}", name_, error.message());
}

DataPath::Written SpeculativeClone::compare(std::span<const std::byte> data, uint64_t written_end) {
  const auto alike = strange_ > 0 ? is_alike(data, written_end) : Result<bool>(true);
  const auto differing = alike && alike.value() ? compare_blocks(data, written_end) : Differing();
  if (!alike || !differing) {
    source_unreadable(alike ? differing.error() : alike.error());
    return {};
  }
  const uint64_t before = mismatched_;
  DataPath::Written written{data.size(), std::nullopt};
  if (alike.value()) {
    written = write_differing(data, differing.value(), written_end);
  } else if (auto all = put(data, written_end); !all) {
    written = {0, all.error()};
  }
  strange_ = mismatched_ - before == data.size() ? strange_ + data.size() : 0;
  compared_ += written.bytes;
  written_ = meta::now();
  if (auto noted = slot_.set(written_end + written.bytes); !noted) written = {0, noted.error()};
  // Behind the written end the blob may hold a part of the failed write, so it differs from the source there.
  if (written.error) ending_ = true;
  written_end_.store(written_end + written.bytes, std::memory_order_release);
  if (written.error || strange_ < kStreak || clones_ >= kMostClones) return written;
  // The WRITE has succeeded, even if the clone cannot be dropped.
  if (auto dropped = drop_clone(); !dropped) ending_ = true;
  return written;
}

// Compares with the source while it is unchanged, else with the file's own clone.
Result<SpeculativeClone::Differing> SpeculativeClone::compare_blocks(std::span<const std::byte> data, uint64_t offset) {
  static_assert(kMostBlocks > RequestLoop::kLargestWrite / kBlock);
  Differing differing;
  if (source_.is_unchanged()) {
    TRY(io::fault_point("adopt.read"));
    TRY_ASSIGN(const auto there, window_.at(source_.descriptor, offset, data.size()));
    const bool compared = io::access_mapped([&] { find_differing(data, there.data(), offset, differing); });
    std::atomic_thread_fence(std::memory_order_acquire);  // the check comes after the reads above
    // An open for writing is counted before its writer can write.
    if (compared && source_.is_unchanged()) return differing;
  }
  const auto room = compared_with.get(data.size());
  if (room.size() < data.size()) return Error(ENOMEM);
  const auto there = room.first(data.size());
  TRY(io::fault_point("adopt.read"));
  TRY_ASSIGN(const size_t got, io::read_full(blob_.get(), there, static_cast<off_t>(offset)));
  if (got < data.size()) return Error(EIO, "a clone is shorter than it was");
  find_differing(data, there.data(), offset, differing);
  return differing;
}

// Does the source hold any of `data`? Tells by samples.
Result<bool> SpeculativeClone::is_alike(std::span<const std::byte> data, uint64_t offset) {
  for (size_t at = 0; at < data.size(); at += kSampled) {
    const size_t length = std::min(kBlock, data.size() - at);
    TRY_ASSIGN(const Differing differing, compare_blocks(data.subspan(at, length), offset + at));
    if (differing.none()) return true;
  }
  return false;
}

Result<> SpeculativeClone::put(std::span<const std::byte> data, uint64_t offset) {
  TRY(io::write_full(blob_.get(), data, static_cast<off_t>(offset)));
  TRY(io::fault_point("adopt.write"));
  mismatched_ += data.size();
  return success();
}

// Writes those of the file's blocks that differ, in runs.
DataPath::Written SpeculativeClone::write_differing(std::span<const std::byte> data, const Differing& differing,
                                                    uint64_t offset) {
  for (size_t at = 0, block = 0; at < data.size();) {
    size_t end = block_end(offset, at, data.size());
    if (differing[block++]) {
      while (end < data.size() && differing[block]) {
        end = block_end(offset, end, data.size());
        ++block;
      }
      if (auto written = put(data.subspan(at, end - at), offset + at); !written) return {at, written.error()};
    }
    at = end;
  }
  return {data.size(), std::nullopt};
}

std::optional<bool> SpeculativeClone::was_right() {
  const io::MutexLock lock(mutex_);
  if (compared_ == 0) return std::nullopt;
  return !is_wrong();
}

Result<> SpeculativeClone::truncate_to_written() {
  const io::MutexLock lock(mutex_);
  return truncate_locked();
}

Result<> SpeculativeClone::truncate_locked() {
  if (!blob_) return success();
  ending_ = true;
  window_.close();
  TRY(drop_clone());
  add(counters_.bytes_adopted, compared_ - mismatched_);
  blob_.reset();
  return success();
}

// Truncates the blob to the written end. From now on the file is written plainly, unless a clone is started again.
Result<> SpeculativeClone::drop_clone() {
  if (!adopting_.load(std::memory_order_relaxed)) return success();
  const uint64_t written_end = written_end_.load(std::memory_order_relaxed);
  TRY(io::fault_point("adopt.cut"));
  if (written_end < clone_size_ && ::ftruncate(blob_.get(), static_cast<off_t>(written_end)) != 0) {
    return last_error("ftruncate");
  }
  clone_size_ = written_end;
  const timespec times[2] = {{0, UTIME_OMIT}, written_};
  if (::futimens(blob_.get(), times) != 0) return last_error("futimens");
  TRY(slot_.set(meta::WrittenEnds::kWhole));
  adopting_.store(false, std::memory_order_release);
  return success();
}

bool SpeculativeClone::is_durable() {
  const io::MutexLock lock(mutex_);
  return !blob_ && !slot_;
}

void SpeculativeClone::abandon() {
  const io::MutexLock lock(mutex_);
  blob_.reset();
  if (slot_) slot_.give_back();
  adopting_.store(false, std::memory_order_release);
}

// The sync may take long, so it runs without the lock. What is written meanwhile is written plainly.
Result<> SpeculativeClone::make_durable(int blob, const std::function<Result<>()>& sync) {
  TRY(truncate_to_written());
  if (is_durable()) return success();
  TRY(sync());
  const io::MutexLock lock(mutex_);
  if (!slot_) return success();
  TRY(meta::Blobs::set_unsettled(blob, false));
  slot_.give_back();
  return success();
}

}  // namespace ckptfs::fs
