// Inode numbers of a remote mount. A number alone tells what it is about:
//
//   kind, 4 bits | slot, 12 bits | step, 22 bits | index, 26 bits
//
// The step's number is local: the catalog gives one to each commit that it sees, and never gives it again. The index is
// the place in the sorted list of the step's files, or the node of its view.
#pragma once

#include <cstdint>
#include <optional>

#include "meta/types.h"

namespace ckptfs::fs::remote_mount {

using meta::InodeNumber;

inline constexpr InodeNumber kRoot = 1;   // FUSE's
inline constexpr InodeNumber kViews = 2;  // /views
inline constexpr uint32_t kMostSlots = 1U << 12;
inline constexpr uint32_t kMostStepNumber = (1U << 22) - 1;
inline constexpr uint32_t kMostIndex = (1U << 26) - 1;

struct Place {
  enum class Kind : uint8_t {
    top,       // of the mount: kRoot, kViews
    slot_top,  // /@I
    whole,     // of /TAG, the union of all slots
    of_slot,   // of /@I/TAG
    of_view,   // of /views/TAG
  };
  Kind kind = Kind::top;
  uint32_t slot = 0;
  uint32_t step = 0;
  uint32_t index = 0;  // 0: the step's own folder

  // Is it a folder that has the steps?
  bool is_top() const { return kind == Kind::top || kind == Kind::slot_top; }
};

inline InodeNumber number_of(const Place& place) {
  if (place.kind == Place::Kind::top) return place.index;
  return InodeNumber{static_cast<uint8_t>(place.kind)} << 60 | InodeNumber{place.slot} << 48 |
         InodeNumber{place.step} << 26 | place.index;
}
inline Place place_of(InodeNumber number) {
  return {static_cast<Place::Kind>(number >> 60), static_cast<uint32_t>(number >> 48) & (kMostSlots - 1),
          static_cast<uint32_t>(number >> 26) & kMostStepNumber, static_cast<uint32_t>(number) & kMostIndex};
}

}  // namespace ckptfs::fs::remote_mount
