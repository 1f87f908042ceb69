// What our Python helper leaves with a DeepSpeed checkpoint: the ds_id of each parameter, {"layers.0.weight": 3, ...}.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "io/result.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// By the names of parameters.
using ParameterIds = std::map<std::string_view, std::optional<uint64_t>>;

// Fills in the ids of those parameters that `ids` has; `index`: of the file, in StepFiles::list().
Result<> read_ids(const StepFiles& files, uint32_t index, ParameterIds& ids);

}  // namespace ckptfs::meta::formats
