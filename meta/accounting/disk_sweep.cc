#include "meta/accounting/disk_sweep.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

namespace ckptfs::meta {

DiskTally::DiskTally(std::vector<std::vector<Owner>> sets, size_t owners)
    : sets_(std::move(sets)), pieces_(sets_.size()), presences_(owners), uses_(owners) {}

void DiskTally::advance(uint64_t position) {
  if (present_ == 1) uses_[present_sum_].exclusive += position - position_;
  position_ = position;
}

void DiskTally::come(uint64_t position, OwnerSet set) {
  advance(position);
  if (pieces_[set]++ != 0) return;
  for (const Owner owner : sets_[set]) {
    Presence& presence = presences_[owner];
    if (presence.sets++ != 0) continue;
    presence.since = position;
    presence.exclusive_before = uses_[owner].exclusive;
    ++present_;
    present_sum_ += owner;
  }
}

void DiskTally::go(uint64_t position, OwnerSet set) {
  advance(position);
  if (--pieces_[set] != 0) return;
  for (const Owner owner : sets_[set]) {
    Presence& presence = presences_[owner];
    if (--presence.sets != 0) continue;
    uses_[owner].shared += position - presence.since - (uses_[owner].exclusive - presence.exclusive_before);
    --present_;
    present_sum_ -= owner;
  }
}

void DiskTally::add_unplaced(OwnerSet set, uint64_t bytes) {
  const bool alone = sets_[set].size() == 1;
  for (const Owner owner : sets_[set]) (alone ? uses_[owner].exclusive : uses_[owner].shared) += bytes;
}

namespace {

// A window of the disk, with the pieces that lie in it.
class Window {
 public:
  Window(uint64_t begin, size_t room) : begin_(begin), room_(std::max<size_t>(room, 2)) {}

  uint64_t end() const { return end_; }

  void add(DiskPiece piece) {
    piece.begin = std::max(piece.begin, begin_);
    piece.end = std::min(piece.end, end_);
    if (piece.begin >= piece.end) return;
    pieces_.push_back(piece);
    if (pieces_.size() >= room_) shrink();
  }

  void tell(std::span<DiskTally> tallies) {
    std::sort(pieces_.begin(), pieces_.end(), [](const DiskPiece& a, const DiskPiece& b) { return a.begin < b.begin; });
    using Going = std::pair<uint64_t, OwnerSet>;
    std::priority_queue<Going, std::vector<Going>, std::greater<>> going;
    const auto go = [&] {
      for (DiskTally& tally : tallies) tally.go(going.top().first, going.top().second);
      going.pop();
    };
    for (const DiskPiece& piece : pieces_) {
      while (!going.empty() && going.top().first <= piece.begin) go();
      for (DiskTally& tally : tallies) tally.come(piece.begin, piece.owners);
      going.emplace(piece.end, piece.owners);
    }
    while (!going.empty()) go();
  }

 private:
  // Joins pieces of the same owners that touch or overlap.
  void merge() {
    std::sort(pieces_.begin(), pieces_.end(), [](const DiskPiece& a, const DiskPiece& b) {
      return std::tie(a.owners, a.begin) < std::tie(b.owners, b.begin);
    });
    size_t last = 0;
    for (size_t i = 1; i < pieces_.size(); ++i) {
      const DiskPiece piece = pieces_[i];
      if (piece.owners == pieces_[last].owners && piece.begin <= pieces_[last].end) {
        pieces_[last].end = std::max(pieces_[last].end, piece.end);
      } else {
        pieces_[++last] = piece;
      }
    }
    pieces_.resize(std::min(pieces_.size(), last + 1));
  }

  // Shrinks the window so that about half of the pieces stay. The others are for the next window.
  void shrink() {
    merge();
    if (pieces_.size() <= room_ / 2) return;
    const auto middle = pieces_.begin() + static_cast<std::ptrdiff_t>(room_ / 2);
    std::nth_element(pieces_.begin(), middle, pieces_.end(),
                     [](const DiskPiece& a, const DiskPiece& b) { return a.begin < b.begin; });
    end_ = middle->begin;
    if (end_ == begin_) {  // more than half begin at its first byte: it then ends where the first of all pieces ends
      end_ = std::min_element(pieces_.begin(), pieces_.end(), [](const DiskPiece& a, const DiskPiece& b) {
               return a.end < b.end;
             })->end;
    }
    std::erase_if(pieces_, [this](const DiskPiece& piece) { return piece.begin >= end_; });
    for (DiskPiece& piece : pieces_) piece.end = std::min(piece.end, end_);
    room_ = std::max(room_, 2 * pieces_.size());
  }

  const uint64_t begin_;
  uint64_t end_ = UINT64_MAX;
  size_t room_;
  std::vector<DiskPiece> pieces_;
};

}  // namespace

Result<size_t> sweep_disk(const std::function<Result<>(const VisitPiece&)>& visit_all, size_t room,
                          std::span<DiskTally> tallies) {
  size_t windows = 0;
  for (uint64_t begin = 0; begin != UINT64_MAX; ++windows) {
    Window window(begin, room);
    TRY(visit_all([&window](const DiskPiece& piece) { window.add(piece); }));
    window.tell(tallies);
    begin = window.end();
  }
  return windows;
}

}  // namespace ckptfs::meta
