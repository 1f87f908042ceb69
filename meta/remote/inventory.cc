#include "meta/remote/inventory.h"

#include <algorithm>
#include <string_view>

#include "meta/remote/part_format.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kMostForeign = 100;
constexpr uint64_t kToldEvery = 10'000;  // objects

void note_part(Inventory& inventory, const PushName& name, const io::ObjectInfo& object) {
  ListedPush& push = inventory.pushes[name];
  push.has_part = object.size > kMostEndedBytes;
  push.is_ended = !push.has_part;
  push.changed = object.changed;
  push.part_bytes = object.size;
}

void note_file(Inventory& inventory, std::string_view folder, const io::ObjectInfo& object) {
  auto found = inventory.folders.find(folder);
  if (found == inventory.folders.end()) found = inventory.folders.emplace(folder, ListedFiles()).first;
  ListedFiles& files = found->second;
  ++files.objects;
  files.bytes += object.size;
  files.newest = std::max(files.newest, object.changed);
}

// Returns false if it is no object of ours.
bool note_object(Inventory& inventory, const io::ObjectInfo& object) {
  const std::string_view key = object.key;
  if (const auto folder = parse_folder(key)) {
    note_file(inventory, *folder, object);
  } else if (const auto push = parse_push_key(key)) {
    inventory.pushes[*push].begun = object.changed;
  } else if (const auto part = parse_part_key(key)) {
    note_part(inventory, *part, object);
  } else if (key.starts_with(kProbe)) {
    inventory.probes.emplace(key, object.changed);
  } else if (!inventory.decisions.note(object)) {
    return key == kFactsKey || key == kCollectedKey || parse_rules_key(key) || parse_owner_key(key);
  }
  return true;
}

}  // namespace

ListedFiles Inventory::files_of(const PushName& push) const {
  const auto found = folders.find(push.folder());
  return found == folders.end() ? ListedFiles() : found->second;
}

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
  // ".ckptfs/gone/" comes before ".ckptfs/steps/" in the list.
  TRY(io::for_each_object(store, "", note, limits));
  TRY_ASSIGN(inventory.steps, inventory.decisions.steps(store.url()));
  return inventory;
}

}  // namespace ckptfs::meta::remote
