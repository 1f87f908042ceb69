// What the readers of one DeepSpeed checkpoint share.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "meta/formats/completeness_judgement.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/map_builder.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

struct DeepSpeedStep {
  DeepSpeedStep(const StepFiles& all, const std::string& in, const MapOptions& options)
      : folder(in), found(find_files(all, in)), builder(all, options) {}

  // Tells that a file is not there. With node-local storage another machine may have it.
  void lacks(const std::string& name, const std::string& reason) {
    if (is_share) return share.add_missing({folder + name});
    builder.problem(std::nullopt, reason, node_local ? Problem::Kind::unreadable : Problem::Kind::missing);
  }

  const std::string folder;  // of the step: "" or "global_step4/"
  DeepSpeedFiles found;
  MapBuilder builder;
  bool is_share = false;    // other machines have the other ranks' files
  bool node_local = false;  // use_node_local_storage
  ShareCheck share;         // what is demanded of the other machines
};

}  // namespace ckptfs::meta::formats
