// Which of a step's files are what in a DeepSpeed checkpoint, by their names. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Indices into StepFiles::list(), as all here.
struct RankFiles {
  std::optional<uint32_t> model;
  std::optional<uint32_t> optimizer;
  std::map<std::string, uint32_t> swapped;  // by name, of offloaded_tensors
  std::map<uint64_t, uint32_t> params;      // by ds_id, of offloaded_params
};

struct DeepSpeedFiles {
  std::vector<RankFiles> ranks;          // up to the highest that has a file
  std::optional<uint32_t> common_model;  // stages 1 and 2: all ranks have the same
  // What our Python helper leaves with a step (gpu/python/ckptfs/deepspeed.py): {"layers.0.weight": 3, ...}
  std::optional<uint32_t> ids;
  std::vector<std::pair<uint32_t, std::string>> foreign;  // of layouts that are not read, and why
};
// `folder`: of the step, "" or "global_step4/".
DeepSpeedFiles find_files(const StepFiles& files, const std::string& folder);

}  // namespace ckptfs::meta::formats
