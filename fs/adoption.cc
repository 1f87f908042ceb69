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

namespace ckptfs::fs {

namespace {

constexpr size_t kBlock = 4096;
constexpr uint64_t kPatience = uint64_t{64} << 20;  // wrong bytes before a guess is given up

thread_local io::AlignedBuffer compared_with;

timespec now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
  return time;
}

}  // namespace

void Adoption::prepare(const std::unique_lock<std::mutex>&, io::Fd blob, meta::BlobNumber number) {
  blob_ = std::move(blob);
  number_ = number;
}

// False: it could not, and the file is to be written plainly.
Result<bool> Adoption::start() {
  auto started = [&]() -> Result<bool> {
    TRY_ASSIGN(auto slot, frontiers_.take(number_));
    if (!slot) return false;
    slot_ = std::move(*slot);
    TRY(meta::Blobs::set_unsettled(blob_.get(), true));
    TRY(io::fault_point("adopt.clone"));
    TRY(io::clone(guess_.descriptor, blob_.get()));
    TRY_ASSIGN(const struct stat st, io::stat_fd(blob_.get()));
    clone_size_ = static_cast<uint64_t>(st.st_size);
    return true;
  }();
  if (started && started.value()) {
    adopting_.store(true, std::memory_order_release);
    add(counters_.adoptions);
    return true;
  }
  add(counters_.adoption_fallbacks);
  spdlog::warn("{} is copied, not adopted: {}", name_,
               started ? "too many copies at the same time" : started.error().message());
  if (auto undone = undo_start(); !undone) {
    // Until it can be emptied, it shows as empty.
    clone_size_ = UINT64_MAX;
    adopting_.store(true, std::memory_order_release);
    return undone.error();
  }
  return false;
}

Result<> Adoption::undo_start() {
  TRY(io::fault_point("adopt.undo"));
  if (::ftruncate(blob_.get(), 0) != 0) return last_error("ftruncate");
  TRY(meta::Blobs::set_unsettled(blob_.get(), false));
  slot_ = {};
  blob_.reset();
  return success();
}

std::optional<uint64_t> Adoption::size() const {
  if (!adopting_.load(std::memory_order_acquire)) return std::nullopt;
  return frontier_.load(std::memory_order_acquire);
}

std::optional<DataPath::Written> Adoption::write(std::span<const std::byte> data, off_t offset) {
  const std::lock_guard lock(mutex_);
  if (!blob_) return std::nullopt;
  if (!adopting_.load(std::memory_order_relaxed) && offset == 0) {
    const auto started = start();
    if (!started) return DataPath::Written{0, started.error()};
    if (!started.value()) return std::nullopt;
  }
  const uint64_t frontier = frontier_.load(std::memory_order_relaxed);
  const bool hopeless = mismatched_ >= kPatience && mismatched_ > compared_ / 2;
  if (hopeless) disappointed_ = true;
  if (hopeless || static_cast<uint64_t>(offset) != frontier || frontier + data.size() > clone_size_) {
    if (auto ended = cut_locked(); !ended) return DataPath::Written{0, ended.error()};
    return std::nullopt;
  }
  auto written = compare(data, frontier);
  if (!written) return DataPath::Written{0, written.error()};
  return std::move(written).value();
}

Result<DataPath::Written> Adoption::compare(std::span<const std::byte> data, uint64_t frontier) {
  const auto there = compared_with.get(data.size());
  if (there.size() < data.size()) return Error(ENOMEM);
  DataPath::Written written{data.size(), std::nullopt};
  TRY_ASSIGN(const bool equal, equals(data, frontier, there));
  if (!equal) {
    size_t done = 0;
    if (auto differing = write_differing(data, there, frontier, done); !differing) {
      written = {done, std::move(differing).error()};
    }
  }
  compared_ += written.bytes;
  written_ = now();
  TRY(slot_.set(frontier + written.bytes));
  frontier_.store(frontier + written.bytes, std::memory_order_release);
  return written;
}

// Reads what is there into `there`, and compares.
Result<bool> Adoption::equals(std::span<const std::byte> data, uint64_t offset, std::span<std::byte> there) const {
  const auto at = static_cast<off_t>(offset);
  bool read = false;
  if (guess_.frozen || guess_.unchanged) {
    TRY_ASSIGN(const size_t got, io::read_full(guess_.descriptor, there, at));
    // Whoever opens the guess for writing is counted before he can write.
    read = got == there.size() && (guess_.frozen || guess_.file->changes.load() == guess_.changes);
  }
  if (!read) {
    TRY_ASSIGN(const size_t got, io::read_full(blob_.get(), there, at));
    if (got < there.size()) return Error(EIO, "a clone is shorter than it was");
  }
  return std::memcmp(data.data(), there.data(), data.size()) == 0;
}

// Writes the file's blocks of `data` that differ from `there`, in runs; `written`: how much of `data` is there now.
Result<> Adoption::write_differing(std::span<const std::byte> data, std::span<const std::byte> there, uint64_t offset,
                                   size_t& written) {
  const auto block_end = [&](size_t at) { return std::min(data.size(), at + kBlock - (offset + at) % kBlock); };
  const auto differs = [&](size_t at) {
    return std::memcmp(data.data() + at, there.data() + at, block_end(at) - at) != 0;
  };
  for (size_t at = 0; at < data.size();) {
    size_t end = block_end(at);
    if (differs(at)) {
      while (end < data.size() && differs(end)) end = block_end(end);
      TRY(io::fault_point("adopt.write"));
      TRY(io::write_full(blob_.get(), data.subspan(at, end - at), static_cast<off_t>(offset + at)));
      mismatched_ += end - at;
    }
    at = end;
    written = at;
  }
  return success();
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
  const uint64_t frontier = frontier_.load(std::memory_order_relaxed);
  TRY(io::fault_point("adopt.cut"));
  if (frontier < clone_size_ && ::ftruncate(blob_.get(), static_cast<off_t>(frontier)) != 0) {
    return last_error("ftruncate");
  }
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

Result<> Adoption::settle(int blob, const std::function<Result<>()>& sync) {
  const std::lock_guard lock(mutex_);
  TRY(cut_locked());
  if (!slot_) return success();
  TRY(sync());
  TRY(meta::Blobs::set_unsettled(blob, false));
  slot_ = {};
  return success();
}

}  // namespace ckptfs::fs
