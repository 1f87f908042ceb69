#include "meta/remote/slot_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "meta/remote/commit.h"

namespace ckptfs::meta::remote {
namespace {

std::pair<uint64_t, std::string> rank_of_part(const SlotPart& part) {
  return {part.header.number, part.listed.push.id};
}

Error two_mounts(const SlotPart& one, const SlotPart& other) {
  return Error(EEXIST, fmt::format("slot {} of {} is pushed by two mounts, one on {} and one on {}: give each its own "
                                   "slot, or remove the remote from one of them",
                                   one.listed.push.slot, one.listed.push.tag, one.header.host, other.header.host));
}

}  // namespace

std::vector<ListedPart> TagParts::of_slot(uint32_t slot) const {
  std::vector<ListedPart> found;
  for (const ListedPart& part : parts) {
    if (part.push.slot == slot) found.push_back(part);
  }
  return found;
}

Result<TagParts> list_parts(io::ObjectStore& store, const std::string& tag, const io::RequestLimits& limits) {
  TagParts listed;
  const auto visit = [&](const io::ObjectInfo& object) -> Result<> {
    const auto push = parse_part_key(object.key);
    if (!push || push->tag != tag) return success();  // somebody else's object
    if (object.size <= kMostEndedBytes) {
      listed.ended.push_back(*push);
    } else {
      listed.parts.push_back({*push, object.size});
    }
    return success();
  };
  TRY(io::for_each_object(store, kParts + tag + "/", visit, limits));
  std::ranges::sort(listed.parts, {}, &ListedPart::push);
  std::ranges::sort(listed.ended);
  return listed;
}

Result<std::optional<SlotPart>> newest_part(io::ObjectStore& store, const std::vector<ListedPart>& parts,
                                            const io::RequestLimits& limits) {
  std::optional<SlotPart> best, rival;  // the rival has the same number
  for (const ListedPart& listed : parts) {
    TRY_ASSIGN(PartHeader header, fetch_part_header(store, listed.push, limits));
    SlotPart one{listed, std::move(header)};
    const bool ties = best && best->header.number == one.header.number;
    if (ties && best->header.mount != one.header.mount) {
      rival = std::move(one);
    } else if (!best || rank_of_part(*best) < rank_of_part(one)) {
      if (!ties) rival.reset();
      best = std::move(one);
    }
  }
  if (rival) return two_mounts(*best, *rival);
  return best;
}

Result<bool> has_newer_part(io::ObjectStore& store, const std::string& tag, uint32_t own,
                            const io::RequestLimits& limits) {
  TagHistory history;
  TRY(history.update(store, tag, limits));
  TRY_ASSIGN(const TagParts listed, list_parts(store, tag, limits));
  for (const ListedPart& part : listed.parts) {
    if (part.push.slot == own || history.commit_of(part.push) || history.is_ended(part.push)) continue;
    TRY_ASSIGN(const PartHeader header, fetch_part_header(store, part.push, limits));
    if (header.number > history.highest_number(part.push.slot)) return true;
  }
  return false;
}

Result<bool> is_spent(io::ObjectStore& store, const PushName& part, const TagParts& listed, const TagHistory& history,
                      const io::RequestLimits& limits) {
  const auto committed = history.commit_of(part);
  if (!committed) return false;
  for (const PartName& other : history.commits().at(*committed)) {
    if (other.push.slot == part.slot) continue;
    TRY_ASSIGN(const auto newest, newest_part(store, listed.of_slot(other.push.slot), limits));
    // The collector may have taken the part of the commit, and left an older one.
    if (newest && newest->listed.push != other.push && newest->header.number >= other.number) return true;
  }
  return false;
}

}  // namespace ckptfs::meta::remote
