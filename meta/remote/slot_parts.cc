#include "meta/remote/slot_parts.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "io/fault.h"
#include "io/log.h"

namespace ckptfs::meta::remote {
namespace {

constexpr const char* kCommittedWithout =
    "this save is committed, without what has changed here since. `ckptfs push --again` of the step on the node of "
    "slot "
    "0 commits that, too";

}  // namespace

bool TagParts::has(const PushName& push) const {
  return std::ranges::find(parts, push, &ListedPart::push) != parts.end();
}

bool TagParts::is_ended(const PushName& push) const { return std::ranges::find(ended, push) != ended.end(); }

Result<TagParts> list_parts(io::ObjectStore& store, const std::string& tag, const io::RequestLimits& limits) {
  TagParts listed;
  const auto visit = [&](const io::ObjectInfo& object) -> Result<> {
    const auto push = parse_part_key(object.key);
    if (!push || push->tag != tag) return success();  // somebody else's object
    if (object.size <= kMostEndedBytes) {
      listed.ended.push_back(*push);
    } else {
      listed.parts.push_back({*push, object.changed});
    }
    return success();
  };
  TRY(io::for_each_object(store, kParts + tag + "/", visit, limits));
  const auto age = [](const ListedPart& part) { return std::tie(part.changed, part.push); };
  std::ranges::sort(listed.parts, std::greater(), age);
  return listed;
}

Result<const PartHeader*> KnownParts::header(io::ObjectStore& store, const PushName& part,
                                             const io::RequestLimits& limits) {
  auto known = headers_.find(part);
  if (known == headers_.end()) {
    auto header = fetch_part_header(store, part, limits);
    if (!header && !is_damage(header.error())) return header.error();
    if (!header) log::warn("a part counts for nothing: {}", header.error().message());
    known = headers_.emplace(part, header ? std::optional(std::move(header).value()) : std::nullopt).first;
  }
  return known->second ? &*known->second : nullptr;
}

Result<Decided> KnownParts::decided(io::ObjectStore& store, const DecisionName& decision,
                                    const io::RequestLimits& limits) {
  const auto known = decided_.find(decision);
  if (known != decided_.end()) return known->second;
  TRY_ASSIGN(const Decided found, look_up(store, decision, limits));
  if (found != Decided::nothing) decided_[decision] = found;
  return found;
}

Result<Lead> find_lead(io::ObjectStore& store, const TagParts& listed, const SaveFacts& own, KnownParts& known,
                       const io::RequestLimits& limits) {
  Lead lead;
  for (const ListedPart& part : listed.parts) {
    if (part.push.slot != 0) continue;
    TRY_ASSIGN(const PartHeader* const header, known.header(store, part.push, limits));
    if (header == nullptr) continue;
    TRY_ASSIGN(const Decided decided, known.decided(store, header->decision, limits));
    std::string why = why_not_one_save(header->save, own);
    if (io::fault_value("save_unchecked")) why.clear();
    if (why.empty() && decided == Decided::nothing) return Lead{header->decision, ""};
    if (why.empty() && decided == Decided::commit) why = kCommittedWithout;
    if (lead.why_not.empty()) lead.why_not = std::move(why);
  }
  if (lead.why_not.empty()) lead.why_not = "slot 0 did not push it yet";
  return lead;
}

}  // namespace ckptfs::meta::remote
