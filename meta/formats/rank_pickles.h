// Reads what each rank has saved of a model by torch.save, as verl does: "model_world_size_4_rank_0.pt" has each tensor
// as a DTensor (FSDP2) or a ShardedTensor (FSDP1), of which it holds this rank's part. All ranks' parts are joined.
// What their optimizers keep is not read: it has numbers for names.
//
// Sources: verl/utils/checkpoint/fsdp_checkpoint_manager.py; torch/distributed/tensor/_dtensor_spec.py and
// placement_types.py; torch/distributed/_shard/sharded_tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "meta/formats/map_budget.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// "actor/optim_world_size_4_rank_0.pt"
struct RankPickleName {
  std::string_view folder;  // "actor/"; may be empty
  std::string_view what;    // "model", "optim", "extra_state"
  uint32_t ranks = 0;
  uint32_t rank = 0;  // less than `ranks`
};
std::optional<RankPickleName> parse_rank_pickle(std::string_view path);

// Reads the models of each folder. Of several the first is the model, and the others' tensors have the folder's name in
// front of theirs and are other ones. The map is empty if there are no such files.
TensorMap read_rank_pickles(const StepFiles& files, const MapOptions& options = {});

}  // namespace ckptfs::meta::formats
