// Whose a slot is. The mount that says first that it is slot i makes .ckptfs/slots/<i>/1; another one that takes the
// slot over makes the next term. The highest term counts. A mount asks before each push whether the slot still is its
// own. This keeps two mounts from pushing as one slot. No step depends on it: parts are joined by their save, never by
// their slot's number. The term also is the first half of a save's order (layout.h).
//
// Stateless; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/objects/object_store.h"
#include "io/result.h"

namespace ckptfs::meta::remote {

struct SlotOwner {
  uint32_t term = 0;
  std::string claim;  // 16 hexadecimal digits, which the series keeps
  std::string host;
  std::string mount;  // PartHeader::mount
  bool is(const SlotOwner& other) const { return claim == other.claim && host == other.host && mount == other.mount; }
};

// None: nobody has it.
Result<std::optional<SlotOwner>> find_owner(io::ObjectStore& store, uint32_t slot, const io::RequestLimits& limits);

enum class Claim { as_before, take_over, next_term };
// Makes `own` the owner of the slot, and returns its term; `own.term` is ignored. The owner itself keeps its term. A
// mount with the owner's claim (a copied store, a renamed host), its mount name (a remote that was removed and added)
// or its place (a new store where the old one was) gets the next term. `take_over`: so does any other mount.
// `next_term`: so does the owner. EEXIST, naming both: it is another mount's.
Result<uint32_t> claim_slot(io::ObjectStore& store, uint32_t slot, const SlotOwner& own, Claim how,
                            const io::RequestLimits& limits);

// EEXIST, naming who has it now. ENOENT: nobody has it, so that it is another remote by now.
Result<> check_owner(io::ObjectStore& store, uint32_t slot, const SlotOwner& own, const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
