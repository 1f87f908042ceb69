#include "meta/steps/tensor_maps.h"

#include <algorithm>

#include "meta/formats/thinning.h"

namespace ckptfs::meta {
namespace {

constexpr uint64_t kRoom = uint64_t{256} << 20;  // has to be free beyond the COW reserves
constexpr size_t kMostPieces = size_t{1} << 20;  // of one map: 20 MiB

size_t pieces_of(const formats::TensorMap& map) {
  size_t count = 0;
  for (const formats::Parameter& parameter : map.parameters) {
    for (const auto& [state, tensor] : parameter.states) count += tensor.pieces.size();
  }
  return count;
}

}  // namespace

Result<std::optional<formats::TensorMap>> kept_map(const Store& store, InodeNumber step, const io::Digest& version,
                                                   size_t files) {
  TRY_ASSIGN(auto kept, none_if_gone(store.index().map(step)));
  const auto is_there = [files](uint32_t file) { return file < files; };
  const bool fits = kept && kept->version == version && std::ranges::all_of(formats::files_of(kept->map), is_there);
  return fits ? std::optional(std::move(kept->map)) : std::nullopt;
}

Result<> keep_map(Store& store, InodeNumber step, const io::Digest& version, const formats::TensorMap& map) {
  if (!map.problems.empty() || pieces_of(map) > kMostPieces) return success();
  if (const SpaceReport space = store.space(); space.free < space.cow_reserve + kRoom) return success();
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(const InodeRecord record, store.tree().inode(step));
  if (!record.is_dir() || record.nlink == 0) return success();
  change.batch.put_map(step, {version, map});
  return store.tree().commit(std::move(change));
}

}  // namespace ckptfs::meta
