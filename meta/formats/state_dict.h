// Sorts the tensors of a nested dict that a program saved by the parameters that they belong to: {"model": state_dict,
// "optimizer": states}. DCP tells the keys that lead to each tensor; of ckptfs.Saver's steps the names tell them.
//
// The model's tensors are below "model" (or "module", "state_dict"), or at the top if there is none of these. The
// optimizer's states have the keys "state", the parameter's name and the state's name, or one key of the three joined
// by dots, which torch.distributed.checkpoint.state_dict makes, or one of the last two right below "optimizer", if the
// state has a usual name. Any other tensor is named by all of its keys: it may be somebody's weights.
//
// Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

using Keys = std::vector<std::string>;

// A tensor, and its keys in the dict that was saved.
struct SavedTensor {
  std::string folder;  // of the step, in which it is: "pytorch_model_fsdp_0/"
  std::string name;    // that it was saved by; may be empty if by_saved_name() is not asked
  Keys keys;           // one at least
  Tensor tensor;
};

// By the parameters. `megatron`: Megatron has saved them, whose names tell what is the optimizer's.
TensorMap by_parameter(std::vector<SavedTensor> saved, bool megatron);
// The tensors under the names that they were saved by, with the folder's name in front if there are several.
TensorMap by_saved_name(std::vector<SavedTensor> saved, bool several);

// Are these the names of tensors of a model and of its optimizer, each with its first key in front? That is so if one
// is a state of a parameter that is there, too: "optimizer.0.weight.exp_avg" beside "model.0.weight". Else "model."
// belongs to the model's own names, as it does in most of Hugging Face's.
bool are_nested(const std::vector<std::string>& names);
// The keys of such a name: ("model", "0.weight").
Keys keys_of_nested(const std::string& name);
// Does the last part of the name tell a state of an optimizer? "0.weight.exp_avg"
bool is_named_as_state(std::string_view name);

// Does Megatron call so what its optimizer keeps of a parameter? "optimizer.state.exp_avg.output_layer.weight"
bool is_megatron_state(std::string_view name);

}  // namespace ckptfs::meta::formats
