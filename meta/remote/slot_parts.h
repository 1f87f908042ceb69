// The parts of a tag, as a list tells them, and which of a slot's parts counts. Stateless; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/layout.h"
#include "meta/remote/part.h"
#include "meta/remote/tag_history.h"

namespace ckptfs::meta::remote {

// The collector ends a push by taking its part's name, with an object that is no longer than this. A part is longer.
inline constexpr uint64_t kMostEndedBytes = 160;

struct ListedPart {
  PushName push;
  uint64_t size = 0;
  bool operator==(const ListedPart&) const = default;
};

struct TagParts {
  std::vector<ListedPart> parts;  // sorted
  std::vector<PushName> ended;    // sorted
  bool operator==(const TagParts&) const = default;

  std::vector<ListedPart> of_slot(uint32_t slot) const;
};
Result<TagParts> list_parts(io::ObjectStore& store, const std::string& tag, const io::RequestLimits& limits);

struct SlotPart {
  ListedPart listed;
  PartHeader header;
};
// The part of the highest number among a slot's parts; of two of that number from one mount (a list came late) the one
// of the higher name. EEXIST, naming both hosts: two of that number are from two mounts.
Result<std::optional<SlotPart>> newest_part(io::ObjectStore& store, const std::vector<ListedPart>& parts,
                                            const io::RequestLimits& limits);

// Has another slot than `own` a part of the tag that is newer than those of it that commits name, also those that are
// gone? It waits to be decided.
Result<bool> has_newer_part(io::ObjectStore& store, const std::string& tag, uint32_t own,
                            const io::RequestLimits& limits);

// Is the part in a commit of its tag, also one that is gone, while another slot has a newer part than that commit? Then
// a further commit must not name it: see the head of election.h.
Result<bool> is_spent(io::ObjectStore& store, const PushName& part, const TagParts& listed, const TagHistory& history,
                      const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
