#include "meta/formats/same_run.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

using Indices = std::map<std::string_view, uint32_t>;

// Returns the optimizer's swap files by their paths from "offloaded_tensors/" on. A Trainer's step has them one folder
// deeper. The parameters' swap files are left out, because only steps made by a save have them. Returns an empty map if
// two files would have the same path.
Indices swap_files(const StepFiles& files) {
  constexpr std::string_view folder = "offloaded_tensors/";
  Indices found;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string_view path = files.list()[index].path;
    const size_t at = path.find(folder);
    const bool whole = at == 0 || (at != std::string_view::npos && path[at - 1] == '/');
    if (!whole || !is_swap_file_name(path)) continue;
    if (!found.emplace(path.substr(at), index).second) return {};
  }
  return found;
}

bool same_files(const StepFiles& files, const Indices& ours, const StepFiles& named_files, const Indices& theirs) {
  return !ours.empty() && ours.size() == theirs.size() && std::all_of(ours.begin(), ours.end(), [&](const auto& one) {
    const auto other = theirs.find(one.first);
    return other != theirs.end() && files.list()[one.second].size == named_files.list()[other->second].size;
  });
}

}  // namespace

TensorMap named_like(TensorMap nameless, const StepFiles& files, const TensorMap& named, const StepFiles& named_files) {
  const Indices ours = swap_files(files), theirs = swap_files(named_files);
  if (!same_files(files, ours, named_files, theirs)) return nameless;
  std::unordered_map<uint32_t, uint32_t> as_ours;
  for (const auto& [path, index] : theirs) as_ours.emplace(index, ours.at(path));
  std::set<uint32_t> divided;
  for (Parameter parameter : named.parameters) {
    std::erase_if(parameter.states, [&](const auto& state) {
      return std::ranges::any_of(state.second.pieces,
                                 [&](const Piece& piece) { return !as_ours.contains(piece.file); });
    });
    for (auto& [name, tensor] : parameter.states) {
      for (Piece& piece : tensor.pieces) divided.insert(piece.file = as_ours.at(piece.file));
    }
    nameless.parameters.push_back(std::move(parameter));
  }
  if (divided.empty()) nameless.parameters.clear();
  std::erase_if(nameless.undivided, [&](const SwapFile& swap) { return divided.contains(swap.file); });
  nameless.tied = named.tied;
  nameless.computes_in = named.computes_in;
  return nameless;
}

}  // namespace ckptfs::meta::formats
