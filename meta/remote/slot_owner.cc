#include "meta/remote/slot_owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/json.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {
namespace {

constexpr const char* kOwnerKind = "slot";
constexpr size_t kMostOwnerBytes = 16'384;
constexpr io::JsonBounds kOwnerBounds{.bytes = kMostOwnerBytes, .values = 64, .text = 8192, .depth = 4};
constexpr int kMostClaims = 8;

std::string text_of(const SlotOwner& owner) {
  nlohmann::json object = new_document(kOwnerKind);
  object["claim"] = owner.claim;
  object["host"] = owner.host;
  object["mount"] = owner.mount;
  return checked_line(object);
}

Result<SlotOwner> owner_of(const std::string& text, uint32_t term) {
  TRY_ASSIGN(const nlohmann::json object, parse_document(text, kOwnerKind, kOwnerBounds));
  SlotOwner owner{term, "", "", ""};
  TRY_ASSIGN(owner.claim, text_field(object, "claim"));
  TRY_ASSIGN(owner.host, text_field(object, "host"));
  TRY_ASSIGN(owner.mount, text_field(object, "mount"));
  return owner;
}

Error is_anothers(const io::ObjectStore& store, uint32_t slot, const SlotOwner& there, const SlotOwner& own) {
  return Error(EEXIST,
               fmt::format("slot {} of {} is that of the mount {}, and this one is {}. Give this one another slot or "
                           "prefix; or, if that mount is gone for good, run `ckptfs remote add` with --take-over",
                           slot, store.url(), io::printable(there.mount), io::printable(own.mount)));
}

// "@<host>:<folder>", of a mount's name: no two stores lie there at a time.
std::string_view place_of(std::string_view mount) {
  const size_t at = mount.find('@');
  return at == std::string_view::npos ? std::string_view() : mount.substr(at);
}

bool may_go_on(const SlotOwner& there, const SlotOwner& own) {
  const std::string_view place = place_of(own.mount);
  return (there.claim == own.claim && !own.claim.empty()) || there.mount == own.mount ||
         (!place.empty() && place_of(there.mount) == place);
}

}  // namespace

Result<std::optional<SlotOwner>> find_owner(io::ObjectStore& store, uint32_t slot, const io::RequestLimits& limits) {
  uint32_t term = 0;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    const auto name = parse_owner_key(object.key);
    if (name && name->slot == slot) term = std::max(term, name->term);
    return success();
  };
  TRY(io::for_each_object(store, fmt::format("{}{}/", kSlots, slot), note, limits));
  if (term == 0) return std::optional<SlotOwner>();
  const std::string key = owner_key(slot, term);
  TRY_ASSIGN(const std::string text, io::get_text(store, key, kMostOwnerBytes, limits));
  TRY_ASSIGN(SlotOwner owner, with_name(store.url() + "/" + key, owner_of(text, term)));
  return std::optional(std::move(owner));
}

Result<uint32_t> claim_slot(io::ObjectStore& store, uint32_t slot, const SlotOwner& own, Claim how,
                            const io::RequestLimits& limits) {
  for (int tries = 0; tries < kMostClaims; ++tries) {
    TRY_ASSIGN(const auto there, find_owner(store, slot, limits));
    // On another try we made it ourselves, and the reply was lost.
    if (there && there->is(own) && (tries > 0 || how != Claim::next_term)) return there->term;
    if (there && !may_go_on(*there, own) && how != Claim::take_over) return is_anothers(store, slot, *there, own);
    const uint32_t term = there ? there->term + 1 : 1;
    TRY_ASSIGN(const bool mine, io::make_object(store, owner_key(slot, term), text_of(own), limits));
    if (mine) return term;
  }
  return Error(EAGAIN, fmt::format("{}: others claim slot {} at this moment; try again", store.url(), slot));
}

Result<> check_owner(io::ObjectStore& store, uint32_t slot, const SlotOwner& own, const io::RequestLimits& limits) {
  TRY_ASSIGN(const auto there, find_owner(store, slot, limits));
  if (!there) return Error(ENOENT, fmt::format("{}: nobody has slot {} there any more", store.url(), slot));
  if (there->is(own)) return success();
  return is_anothers(store, slot, *there, own);
}

}  // namespace ckptfs::meta::remote
