#include "meta/remote/slot_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
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

Result<bool> has_tombstone(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits) {
  const std::string key = gone_key(decision);
  bool found = false;
  const auto visit = [&](const io::ObjectInfo& object) -> Result<> {
    found = found || object.key == key;
    return success();
  };
  TRY(io::for_each_object(store, key.substr(0, key.rfind('/') + 1), visit, limits));
  return found;
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
  TRY_ASSIGN(const TagDecisions decisions, list_decisions(store, tag, limits));
  std::set<PushName> named;
  std::map<uint32_t, uint64_t> newest;  // number by slot
  for (const CommittedStep& step : decisions.commits) {
    const auto commit = fetch_commit(store, step.decision, limits);
    if (!commit && step.gone && commit.error().errno_value() == ENOENT) continue;
    TRY(commit);
    for (const PartName& part : commit.value().parts) {
      named.insert(part.push);
      newest[part.push.slot] = std::max(newest[part.push.slot], part.number);
    }
  }
  TRY_ASSIGN(const TagParts listed, list_parts(store, tag, limits));
  for (const ListedPart& part : listed.parts) {
    if (part.push.slot == own || named.contains(part.push)) continue;
    TRY_ASSIGN(const PartHeader header, fetch_part_header(store, part.push, limits));
    if (header.number > newest[part.push.slot]) return true;
  }
  return false;
}

Result<bool> is_spent(io::ObjectStore& store, const PushName& part, const TagParts& listed,
                      const io::RequestLimits& limits) {
  TRY_ASSIGN(const TagDecisions decisions, list_decisions(store, part.tag, limits));
  for (const CommittedStep& step : decisions.commits) {
    TRY_ASSIGN(const Commit commit, fetch_commit(store, step.decision, limits));
    if (part.slot >= commit.parts.size() || commit.parts[part.slot].push != part) continue;
    for (const PartName& other : commit.parts) {
      if (other.push.slot == part.slot) continue;
      TRY_ASSIGN(const auto newest, newest_part(store, listed.of_slot(other.push.slot), limits));
      if (newest && newest->listed.push != other.push) return true;
    }
  }
  return false;
}

Result<bool> has_lost_lender(io::ObjectStore& store, const std::vector<DecisionName>& borrowed_from,
                             const std::vector<PushName>& unfinished, const TagParts& listed,
                             const io::RequestLimits& limits) {
  for (const PushName& push : unfinished) {
    if (std::ranges::binary_search(listed.ended, push)) return true;
  }
  for (const DecisionName& lender : borrowed_from) {
    TRY_ASSIGN(const bool gone, has_tombstone(store, lender, limits));
    if (gone) return true;
  }
  return false;
}

}  // namespace ckptfs::meta::remote
