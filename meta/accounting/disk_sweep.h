// Who has which blocks of the disk: for each owner, the bytes that it alone has, and those that others have too.
//
// An owner is a small number. A piece of the disk belongs to a set of owners, which has a number too. However many
// pieces there are, only so many are held at a time: the disk is swept in windows, from its begin to its end, and all
// pieces are asked for again for each window. How wide a window is shows as it fills: too many, and it ends earlier.
//
// Not thread-safe: each is one caller's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "io/result.h"

namespace ckptfs::meta {

using Owner = uint32_t;
using OwnerSet = uint32_t;

struct DiskPiece {
  uint64_t begin = 0;  // bytes on the device
  uint64_t end = 0;
  OwnerSet owners = 0;
};

struct DiskUse {
  uint64_t exclusive = 0;  // no other owner has it
  uint64_t shared = 0;     // others have it too; each byte once
};

// Adds up what lies between the places where a set of owners comes or goes.
class DiskTally {
 public:
  // `sets`: by number, the owners in each set, each once.
  DiskTally(std::vector<std::vector<Owner>> sets, size_t owners);

  // From here on a piece of the set is there; one less is. Positions never go back.
  void come(uint64_t position, OwnerSet set);
  void go(uint64_t position, OwnerSet set);
  // Bytes that no other piece has, and that have no place on the disk yet.
  void add_unplaced(OwnerSet set, uint64_t bytes);
  // By owner, when all that came has gone.
  const std::vector<DiskUse>& uses() const { return uses_; }

 private:
  struct Presence {
    size_t sets = 0;  // that are there and hold it
    uint64_t since = 0;
    uint64_t exclusive_before = 0;  // its exclusive bytes when it came
  };
  void advance(uint64_t position);

  const std::vector<std::vector<Owner>> sets_;
  std::vector<size_t> pieces_;       // by set: how many are there
  std::vector<Presence> presences_;  // by owner
  std::vector<DiskUse> uses_;        // by owner
  uint64_t position_ = 0;
  size_t present_ = 0;        // owners that are there
  uint64_t present_sum_ = 0;  // of their numbers: where one is there alone, it is that one
};

using VisitPiece = std::function<void(const DiskPiece&)>;

// Tells each tally where sets of owners come and go. `visit_all` calls its argument for each piece, in any order; it is
// called once for each window. `room`: pieces held at a time; more only where more sets than that have the same byte.
// Returns how many windows it took.
Result<size_t> sweep_disk(const std::function<Result<>(const VisitPiece&)>& visit_all, size_t room,
                          std::span<DiskTally> tallies);

}  // namespace ckptfs::meta
