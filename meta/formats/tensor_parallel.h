// Joins what DeepSpeed's tensor parallel ranks (AutoTP) have of each parameter. model_states.pt tells how a model is
// cut: by patterns of names, each of one name, for tensors that are cut along dimension 1, and for those that each rank
// has in whole, as it has buffers. All others are cut along dimension 0. The shape of a whole one must be told, too:
// older versions do not tell it, and their tensors are left out. Source: deepspeed/checkpoint/constants.py,
// module_inject/layers.py (UNIVERSAL_CHECKPOINT_INFO)
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "meta/formats/map_builder.h"
#include "meta/formats/pickle.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

struct TensorCuts {
  std::set<std::string, std::less<>> along_columns;       // along dimension 1
  std::set<std::string, std::less<>> replicated;          // whole in each rank
  std::map<std::string, Shape, std::less<>> shapes = {};  // of whole tensors that are cut; not of the vocabulary's
  std::set<std::string, std::less<>> of_vocabulary;       // may be padded in dimension 0
  uint64_t vocabulary = 0;                                // without padding
  std::string unread;                                     // why they cannot be joined; empty: they can
};

// `told`: universal_checkpoint_info.
TensorCuts cuts_of(const std::optional<Pickle::Value>& told, MapBuilder& builder);

// Puts one parameter in the place of those of all ranks. `begins`: where each rank's begin in the map. What cannot be
// joined is left out.
void join_ranks(const TensorCuts& cuts, const std::vector<size_t>& begins, MapBuilder& builder);

// Leaves them as they are, under names of their ranks: "mp_rank_01/model.norm.weight".
void keep_apart(const TensorCuts& cuts, const std::vector<size_t>& begins, MapBuilder& builder);

}  // namespace ckptfs::meta::formats
