#include "meta/blobs/written_ends.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "io/boot.h"
#include "io/fault.h"
#include "io/log.h"
#include "meta/blobs/blobs.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kHeader = 4096;
constexpr size_t kSlots = 1024;  // for speculative clones that are being written, or were closed a moment ago
using Entry = std::array<uint64_t, 2>;

}  // namespace

Result<std::unique_ptr<WrittenEnds>> WrittenEnds::open(const std::string& file, Index& index) {
  TRY_ASSIGN(std::string boot, io::boot_id());
  TRY_ASSIGN(io::Fd fd, io::open_at(AT_FDCWD, file, O_RDWR | O_CREAT, 0600));
  std::unique_ptr<WrittenEnds> written_ends(new WrittenEnds(std::move(fd), std::move(boot), index));
  TRY(written_ends->read());
  const io::MutexLock lock(written_ends->mutex_);
  TRY_ASSIGN(written_ends->settled_, index.number_or_zero(kSettledKey));
  written_ends->recorded_ = written_ends->settled_;
  return written_ends;
}

std::string WrittenEnds::header() const {
  std::string text = "ckptfs frontiers 1, boot " + boot_ + "\n";
  text.resize(kHeader, '\0');
  return text;
}

Result<> WrittenEnds::read() {
  std::string found(kHeader, '\0');
  TRY_ASSIGN(const size_t got, io::read_full(file_.get(), std::as_writable_bytes(std::span(found)), 0));
  if (got != kHeader || found != header()) return success();
  std::vector<Entry> slots(kSlots);
  TRY_ASSIGN(const size_t bytes, io::read_full(file_.get(), std::as_writable_bytes(std::span(slots)), kHeader));
  slots.resize(bytes / sizeof(Entry));
  for (const auto& [blob, written_end] : slots) {
    if (blob != 0) left_.emplace(blob, written_end);
  }
  return success();
}

std::optional<uint64_t> WrittenEnds::left(BlobNumber blob) const {
  const auto found = left_.find(blob);
  return found == left_.end() ? std::nullopt : std::optional(found->second);
}

Result<> WrittenEnds::begin(const std::vector<BlobNumber>& not_truncated) {
  // Written over what is there, since a full store has no blocks for a new file.
  const std::string text = header() + std::string(kSlots * sizeof(Entry), '\0');
  TRY(io::write_full(file_.get(), std::as_bytes(std::span(text)), 0));
  TRY_ASSIGN(slots_, io::MappedWords::map(file_.get(), kHeader, kSlots * std::tuple_size_v<Entry>));
  const io::MutexLock lock(mutex_);
  free_.clear();
  for (size_t position = kSlots; position > not_truncated.size(); --position) free_.push_back(position - 1);
  for (size_t position = 0; position < std::min(not_truncated.size(), kSlots); ++position) {
    TRY(write(position, not_truncated[position], left(not_truncated[position]).value_or(0)));
  }
  unsettled_ = {not_truncated.begin(), not_truncated.end()};
  left_.clear();
  return success();
}

Result<> WrittenEnds::write(size_t position, BlobNumber blob, uint64_t written_end) const {
  TRY(set_end(position, written_end));
  return slots_.store(position * std::tuple_size_v<Entry>, blob);
}

Result<> WrittenEnds::empty(size_t position) const {
  TRY(io::fault_point("frontiers.empty"));
  return write(position, 0, 0);
}

Result<> WrittenEnds::set_end(size_t position, uint64_t written_end) const {
  return slots_.store(position * std::tuple_size_v<Entry> + 1, written_end);
}

Result<std::optional<WrittenEnds::Slot>> WrittenEnds::take(BlobNumber blob) {
  const auto position = take_position(blob);
  if (!position) return std::optional<Slot>();
  Slot slot(*this, *position, blob);
  auto taken = lower_settled(blob);
  if (taken) taken = write(*position, blob, 0);
  if (!taken) {
    slot.give_back();
    return std::move(taken).error();
  }
  return std::optional(std::move(slot));
}

std::optional<size_t> WrittenEnds::take_position(BlobNumber blob) {
  const io::MutexLock lock(mutex_);
  size_t position = 0;
  if (const auto kept = kept_.find(blob); kept != kept_.end()) {
    position = kept->second;
    kept_.erase(kept);
  } else {
    if (free_.empty()) return std::nullopt;
    position = free_.back();
    free_.pop_back();
  }
  unsettled_.insert(blob);
  return position;
}

Result<> WrittenEnds::record_settled(BlobNumber below) {
  Batch batch(index_);
  batch.put_number(kSettledKey, below);
  batch.allow_on_full_store();
  TRY(index_.commit(std::move(batch)));
  recorded_ = below;
  return success();
}

// Calls that come meanwhile sync, too: the number that one of them has recorded is not durable before.
Result<> WrittenEnds::lower_settled(BlobNumber blob) {
  {
    const io::MutexLock lock(mutex_);
    if (blob >= settled_) return success();
    if (blob < recorded_) TRY(record_settled(blob));
  }
  TRY(index_.sync());
  const io::MutexLock lock(mutex_);
  settled_ = std::min(settled_, blob);
  return success();
}

// Numbers are allotted in blocks, and some of the last block are not used yet. So the number stays below that block.
Result<> WrittenEnds::raise_settled() {
  TRY_ASSIGN(const uint64_t limit, index_.number(kBlobLimitKey));
  const io::MutexLock lock(mutex_);
  BlobNumber below = limit - std::min(limit, kNumberBlock);
  if (!unsettled_.empty()) below = std::min(below, *unsettled_.begin());
  if (below <= recorded_) return success();
  TRY(record_settled(below));
  settled_ = below;
  return success();
}

Result<> WrittenEnds::take_off_mark(BlobNumber blob, int fd) {
  const io::MutexLock lock(mutex_);
  return unsettled_.contains(blob) ? Result<>(success()) : Blobs::set_unsettled(fd, false);
}

WrittenEnds::Slot::Slot(Slot&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), position_(other.position_), blob_(other.blob_) {}

WrittenEnds::Slot& WrittenEnds::Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    owner_ = std::exchange(other.owner_, nullptr);
    position_ = other.position_;
    blob_ = other.blob_;
  }
  return *this;
}

Result<> WrittenEnds::Slot::set(uint64_t written_end) { return owner_->set_end(position_, written_end); }

void WrittenEnds::Slot::give_back() {
  if (owner_ == nullptr) return;
  const auto emptied = owner_->empty(position_);
  if (!emptied) log::warn("frontiers: {}", emptied.error().message());
  const io::MutexLock lock(owner_->mutex_);
  owner_->unsettled_.erase(blob_);
  if (emptied) {
    owner_->free_.push_back(position_);
  } else {
    owner_->kept_.emplace(blob_, position_);
  }
  owner_ = nullptr;
}

}  // namespace ckptfs::meta
