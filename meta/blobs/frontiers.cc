#include "meta/blobs/frontiers.h"

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
constexpr size_t kSlots = 1024;  // files being adopted at the same time, or closed a moment ago
using Entry = std::array<uint64_t, 2>;

}  // namespace

Result<std::unique_ptr<Frontiers>> Frontiers::open(const std::string& file, Index& index) {
  TRY_ASSIGN(std::string boot, io::boot_id());
  TRY_ASSIGN(io::Fd fd, io::open_at(AT_FDCWD, file, O_RDWR | O_CREAT, 0600));
  std::unique_ptr<Frontiers> frontiers(new Frontiers(std::move(fd), std::move(boot), index));
  TRY(frontiers->read());
  const io::MutexLock lock(frontiers->mutex_);
  TRY_ASSIGN(frontiers->settled_, index.number_or_zero(kSettledKey));
  frontiers->recorded_ = frontiers->settled_;
  return frontiers;
}

std::string Frontiers::header() const {
  std::string text = "ckptfs frontiers 1, boot " + boot_ + "\n";
  text.resize(kHeader, '\0');
  return text;
}

Result<> Frontiers::read() {
  std::string found(kHeader, '\0');
  TRY_ASSIGN(const size_t got, io::read_full(file_.get(), std::as_writable_bytes(std::span(found)), 0));
  if (got != kHeader || found != header()) return success();
  std::vector<Entry> slots(kSlots);
  TRY_ASSIGN(const size_t bytes, io::read_full(file_.get(), std::as_writable_bytes(std::span(slots)), kHeader));
  slots.resize(bytes / sizeof(Entry));
  for (const auto& [blob, frontier] : slots) {
    if (blob != 0) left_.emplace(blob, frontier);
  }
  return success();
}

std::optional<uint64_t> Frontiers::left(BlobNumber blob) const {
  const auto found = left_.find(blob);
  return found == left_.end() ? std::nullopt : std::optional(found->second);
}

Result<> Frontiers::begin(const std::vector<BlobNumber>& uncut) {
  // Over what is there: a full store has no blocks for it.
  const std::string text = header() + std::string(kSlots * sizeof(Entry), '\0');
  TRY(io::write_full(file_.get(), std::as_bytes(std::span(text)), 0));
  TRY_ASSIGN(slots_, io::MappedWords::map(file_.get(), kHeader, kSlots * std::tuple_size_v<Entry>));
  const io::MutexLock lock(mutex_);
  free_.clear();
  for (size_t position = kSlots; position > uncut.size(); --position) free_.push_back(position - 1);
  for (size_t position = 0; position < std::min(uncut.size(), kSlots); ++position) {
    TRY(write(position, uncut[position], left(uncut[position]).value_or(0)));
  }
  unsettled_ = {uncut.begin(), uncut.end()};
  left_.clear();
  return success();
}

Result<> Frontiers::write(size_t position, BlobNumber blob, uint64_t frontier) const {
  TRY(set_frontier(position, frontier));
  return slots_.store(position * std::tuple_size_v<Entry>, blob);
}

Result<> Frontiers::empty(size_t position) const {
  TRY(io::fault_point("frontiers.empty"));
  return write(position, 0, 0);
}

Result<> Frontiers::set_frontier(size_t position, uint64_t frontier) const {
  return slots_.store(position * std::tuple_size_v<Entry> + 1, frontier);
}

Result<std::optional<Frontiers::Slot>> Frontiers::take(BlobNumber blob) {
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

std::optional<size_t> Frontiers::take_position(BlobNumber blob) {
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

Result<> Frontiers::record_settled(BlobNumber below) {
  Batch batch(index_);
  batch.put_number(kSettledKey, below);
  batch.allow_on_full_store();
  TRY(index_.commit(std::move(batch)));
  recorded_ = below;
  return success();
}

// Others that come meanwhile sync, too: what one of them recorded is durable for none before that.
Result<> Frontiers::lower_settled(BlobNumber blob) {
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

// Of the last block of numbers that was allotted some are not used yet.
Result<> Frontiers::raise_settled() {
  TRY_ASSIGN(const uint64_t limit, index_.number(kBlobLimitKey));
  const io::MutexLock lock(mutex_);
  BlobNumber below = limit - std::min(limit, kNumberBlock);
  if (!unsettled_.empty()) below = std::min(below, *unsettled_.begin());
  if (below <= recorded_) return success();
  TRY(record_settled(below));
  settled_ = below;
  return success();
}

Result<> Frontiers::take_off_mark(BlobNumber blob, int fd) {
  const io::MutexLock lock(mutex_);
  return unsettled_.contains(blob) ? Result<>(success()) : Blobs::set_unsettled(fd, false);
}

Frontiers::Slot::Slot(Slot&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), position_(other.position_), blob_(other.blob_) {}

Frontiers::Slot& Frontiers::Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    owner_ = std::exchange(other.owner_, nullptr);
    position_ = other.position_;
    blob_ = other.blob_;
  }
  return *this;
}

Result<> Frontiers::Slot::set(uint64_t frontier) { return owner_->set_frontier(position_, frontier); }

void Frontiers::Slot::give_back() {
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
