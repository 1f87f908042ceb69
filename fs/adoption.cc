#include "fs/adoption.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "io/aligned_buffer.h"
#include "io/clone.h"
#include "io/fault.h"
#include "meta/blobs.h"
#include "meta/time.h"

namespace ckptfs::fs {

namespace {

constexpr size_t kBlock = 4096;
constexpr size_t kSampled = size_t{64} << 10;       // one block of so many bytes is looked at
constexpr uint64_t kPatience = uint64_t{64} << 20;  // wrong bytes before a guess is given up

thread_local io::AlignedBuffer compared_with;

}  // namespace

void Adoption::prepare(const std::unique_lock<std::mutex>&, io::Fd blob, meta::BlobNumber number) {
  blob_ = std::move(blob);
  number_ = number;
}

// False: it could not, and the file is to be written plainly. It shows as empty meanwhile.
Result<bool> Adoption::start() {
  const auto started = [&]() -> Result<bool> {
    TRY_ASSIGN(const struct stat before, io::stat_fd(blob_.get()));
    if (before.st_size != 0) return false;  // somebody has made it longer
    TRY_ASSIGN(auto slot, frontiers_.take(number_));
    if (!slot) return Error(EAGAIN, "too many copies at the same time");
    slot_ = std::move(*slot);
    written_ = meta::now();
    adopting_.store(true, std::memory_order_release);
    TRY(meta::Blobs::set_unsettled(blob_.get(), true));
    TRY(io::fault_point("adopt.clone"));
    TRY(io::clone(guess_.descriptor, blob_.get()));
    TRY_ASSIGN(const struct stat st, io::stat_fd(blob_.get()));
    clone_size_ = static_cast<uint64_t>(st.st_size);
    return true;
  }();
  if (started && started.value()) {
    add(counters_.adoptions);
    shared_();
    return true;
  }
  if (!started) {
    add(counters_.adoption_fallbacks);
    spdlog::warn("{} is copied, not adopted: {}", name_, started.error().message());
  }
  if (slot_) TRY(undo_start());
  blob_.reset();
  return false;
}

// On an error it goes on showing as empty, and is cut when that can be.
Result<> Adoption::undo_start() {
  ending_ = true;
  clone_size_ = UINT64_MAX;
  TRY(io::fault_point("adopt.undo"));
  if (::ftruncate(blob_.get(), 0) != 0) return last_error("ftruncate");
  TRY(meta::Blobs::set_unsettled(blob_.get(), false));
  slot_.give_back();
  adopting_.store(false, std::memory_order_release);
  return success();
}

std::optional<uint64_t> Adoption::size() const {
  if (!adopting_.load(std::memory_order_acquire)) return std::nullopt;
  return frontier_.load(std::memory_order_acquire);
}

DataPath::Written Adoption::write(std::span<const std::byte> data, off_t offset) {
  const std::lock_guard lock(mutex_);
  if (!blob_) return {};
  if (!adopting_.load(std::memory_order_relaxed) && offset == 0) {
    const auto started = start();
    if (!started) return {0, started.error()};
    if (!started.value()) return {};
  }
  const uint64_t frontier = frontier_.load(std::memory_order_relaxed);
  const bool hopeless = mismatched_ >= kPatience && is_wrong();
  DataPath::Written written;
  if (!hopeless && !ending_ && static_cast<uint64_t>(offset) == frontier) {
    written = compare(data.first(std::min<uint64_t>(data.size(), clone_size_ - frontier)), frontier);
  }
  if (written.error || written.bytes == data.size()) return written;
  if (auto ended = cut_locked(); !ended) written.error = ended.error();
  return written;
}

// What cannot be compared is written plainly, and so is all that follows: whoever writes does not need the guess.
DataPath::Written Adoption::compare(std::span<const std::byte> data, uint64_t frontier) {
  const auto there = compared_with.get(data.size());
  if (there.size() < data.size()) return {0, Error(ENOMEM)};
  const auto alike = read_alike(data, frontier, there);
  if (!alike) {
    ending_ = true;
    add(counters_.adoption_fallbacks);
    spdlog::warn("{} is written on plainly: what it was expected to hold cannot be read: {}", name_,
                 alike.error().message());
    return {};
  }
  const uint64_t before = mismatched_;
  DataPath::Written written{data.size(), std::nullopt};
  if (alike.value()) {
    written = write_differing(data, there, frontier);
  } else if (auto all = put(data, frontier); !all) {
    written = {0, all.error()};
  }
  estranged_ = mismatched_ - before == data.size();
  compared_ += written.bytes;
  written_ = meta::now();
  if (auto noted = slot_.set(frontier + written.bytes); !noted) written = {0, noted.error()};
  // Behind the frontier the blob may hold a part of what failed: it is no longer what it is compared with.
  if (written.error) ending_ = true;
  frontier_.store(frontier + written.bytes, std::memory_order_release);
  return written;
}

Result<> Adoption::read_there(uint64_t offset, std::span<std::byte> there) const {
  const auto at = static_cast<off_t>(offset);
  TRY(io::fault_point("adopt.read"));
  if (guess_.frozen || guess_.unchanged) {
    TRY_ASSIGN(const size_t got, io::read_full(guess_.descriptor, there, at));
    // Whoever opens the guess for writing is counted before he can write.
    if (got == there.size() && (guess_.frozen || guess_.file->changes.load() == guess_.changes)) return success();
  }
  TRY_ASSIGN(const size_t got, io::read_full(blob_.get(), there, at));
  if (got < there.size()) return Error(EIO, "a clone is shorter than it was");
  return success();
}

// Reads what is there. False: nothing of it is equal, as it seems, and not all of it was read.
Result<bool> Adoption::read_alike(std::span<const std::byte> data, uint64_t offset, std::span<std::byte> there) const {
  if (estranged_) {
    TRY_ASSIGN(const bool alike, is_alike(data, offset, there));
    if (!alike) return false;
  }
  TRY(read_there(offset, there));
  return true;
}

// By samples.
Result<bool> Adoption::is_alike(std::span<const std::byte> data, uint64_t offset, std::span<std::byte> there) const {
  for (size_t at = 0; at < data.size(); at += kSampled) {
    const size_t length = std::min(kBlock, data.size() - at);
    TRY(read_there(offset + at, there.subspan(at, length)));
    if (std::memcmp(data.data() + at, there.data() + at, length) == 0) return true;
  }
  return false;
}

Result<> Adoption::put(std::span<const std::byte> data, uint64_t offset) {
  TRY(io::write_full(blob_.get(), data, static_cast<off_t>(offset)));
  TRY(io::fault_point("adopt.write"));
  mismatched_ += data.size();
  return success();
}

// Writes the file's blocks of `data` that differ from `there`, in runs.
DataPath::Written Adoption::write_differing(std::span<const std::byte> data, std::span<const std::byte> there,
                                            uint64_t offset) {
  const auto block_end = [&](size_t at) { return std::min(data.size(), at + kBlock - (offset + at) % kBlock); };
  const auto differs = [&](size_t at) {
    return std::memcmp(data.data() + at, there.data() + at, block_end(at) - at) != 0;
  };
  for (size_t at = 0; at < data.size();) {
    size_t end = block_end(at);
    if (differs(at)) {
      while (end < data.size() && differs(end)) end = block_end(end);
      if (auto written = put(data.subspan(at, end - at), offset + at); !written) return {at, written.error()};
    }
    at = end;
  }
  return {data.size(), std::nullopt};
}

std::optional<bool> Adoption::was_right() {
  const std::lock_guard lock(mutex_);
  if (compared_ == 0) return std::nullopt;
  return !is_wrong();
}

Result<> Adoption::cut() {
  const std::lock_guard lock(mutex_);
  return cut_locked();
}

Result<> Adoption::cut_locked() {
  if (!blob_) return success();
  if (!adopting_.load(std::memory_order_relaxed)) {
    blob_.reset();
    return success();
  }
  ending_ = true;
  const uint64_t frontier = frontier_.load(std::memory_order_relaxed);
  TRY(io::fault_point("adopt.cut"));
  if (frontier < clone_size_ && ::ftruncate(blob_.get(), static_cast<off_t>(frontier)) != 0) {
    return last_error("ftruncate");
  }
  clone_size_ = frontier;
  const timespec times[2] = {{0, UTIME_OMIT}, written_};
  if (::futimens(blob_.get(), times) != 0) return last_error("futimens");
  TRY(slot_.set(meta::Frontiers::kWhole));
  add(counters_.bytes_adopted, compared_ - mismatched_);
  blob_.reset();
  adopting_.store(false, std::memory_order_release);
  return success();
}

bool Adoption::is_settled() {
  const std::lock_guard lock(mutex_);
  return !blob_ && !slot_;
}

void Adoption::abandon() {
  const std::lock_guard lock(mutex_);
  blob_.reset();
  if (slot_) slot_.give_back();
  adopting_.store(false, std::memory_order_release);
}

// The sync may take long, and nobody waits for it with the lock: what is written meanwhile is written plainly.
Result<> Adoption::settle(int blob, const std::function<Result<>()>& sync) {
  TRY(cut());
  if (is_settled()) return success();
  TRY(sync());
  const std::lock_guard lock(mutex_);
  if (!slot_) return success();
  TRY(meta::Blobs::set_unsettled(blob, false));
  slot_.give_back();
  return success();
}

}  // namespace ckptfs::fs
