#include "meta/remote/inventory.h"

#include <algorithm>
#include <string_view>

#include "meta/remote/slot_parts.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kMostForeign = 100;
constexpr uint64_t kToldEvery = 10'000;  // objects

void note_part(Inventory& inventory, const PushName& push, const io::ObjectInfo& object) {
  PushObjects& objects = inventory.pushes[push];
  objects.has_part = object.size > kMostEndedBytes;
  objects.is_ended = !objects.has_part;
  objects.changed = object.changed;
  objects.part_bytes = object.size;
}

void note_pack(Inventory& inventory, const PackName& name, const io::ObjectInfo& object) {
  PushObjects& objects = inventory.pushes[name.push];
  objects.packs.push_back({name.pack, static_cast<uint32_t>(std::min<uint64_t>(object.size, UINT32_MAX))});
  objects.newest_pack = std::max(objects.newest_pack, object.changed);
}

// Returns false if it is no object of ours.
bool note_object(Inventory& inventory, const io::ObjectInfo& object) {
  const std::string_view key = object.key;
  if (const auto pack = parse_pack_key(key)) {
    note_pack(inventory, *pack, object);
  } else if (const auto push = parse_part_key(key)) {
    note_part(inventory, *push, object);
  } else if (const auto vote = parse_vote_key(key)) {
    inventory.votes[vote->decision].push_back(vote->slot);
  } else if (const auto look = parse_look_key(key)) {
    inventory.looks.emplace(*look, object.changed);
  } else if (key.starts_with(kProbe)) {
    inventory.probes.emplace(key, object.changed);
  } else if (!note_decision(inventory.decisions, object)) {
    return key == kFactsKey || parse_rules_key(key).has_value();
  }
  return true;
}

}  // namespace

Result<Inventory> take_inventory(io::ObjectStore& store, const std::function<void(uint64_t objects)>& progress,
                                 const io::RequestLimits& limits) {
  Inventory inventory;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    ++inventory.objects;
    inventory.bytes += object.size;
    if (inventory.objects % kToldEvery == 0) progress(inventory.objects);
    if (note_object(inventory, object)) return success();
    ++inventory.foreign_count;
    if (inventory.foreign.size() < kMostForeign) inventory.foreign.push_back(object.key);
    return success();
  };
  // "gone/" comes before "steps/" in the list.
  TRY(io::for_each_object(store, "", note, limits));
  for (auto& [push, objects] : inventory.pushes) {
    std::ranges::sort(objects.packs, {}, &ListedPack::pack);
    objects.packs.shrink_to_fit();
  }
  TRY_ASSIGN(inventory.steps, steps_of(inventory.decisions, store.url()));
  return inventory;
}

}  // namespace ckptfs::meta::remote
