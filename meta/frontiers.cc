#include "meta/frontiers.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "io/boot.h"
#include "io/fault.h"
#include "io/log.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kHeader = 4096;
constexpr size_t kSlots = 1024;  // files being adopted at the same time, or closed a moment ago
using Entry = std::array<uint64_t, 2>;

}  // namespace

Result<std::unique_ptr<Frontiers>> Frontiers::open(const std::string& file) {
  TRY_ASSIGN(std::string boot, io::boot_id());
  TRY_ASSIGN(io::Fd fd, io::open_at(AT_FDCWD, file, O_RDWR | O_CREAT, 0600));
  std::unique_ptr<Frontiers> frontiers(new Frontiers(std::move(fd), std::move(boot)));
  TRY(frontiers->read());
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
  const std::lock_guard lock(mutex_);
  free_.clear();
  for (size_t position = kSlots; position > uncut.size(); --position) free_.push_back(position - 1);
  for (size_t position = 0; position < std::min(uncut.size(), kSlots); ++position) {
    TRY(write(position, uncut[position], left(uncut[position]).value_or(0)));
  }
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
  size_t position = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const auto kept = kept_.find(blob); kept != kept_.end()) {
      position = kept->second;
      kept_.erase(kept);
    } else {
      if (free_.empty()) return std::optional<Slot>();
      position = free_.back();
      free_.pop_back();
    }
  }
  Slot slot(*this, position, blob);
  if (auto written = write(position, blob, 0); !written) {
    slot.give_back();
    return std::move(written).error();
  }
  return std::optional(std::move(slot));
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
  const std::lock_guard lock(owner_->mutex_);
  if (emptied) {
    owner_->free_.push_back(position_);
  } else {
    owner_->kept_.emplace(blob_, position_);
  }
  owner_ = nullptr;
}

}  // namespace ckptfs::meta
