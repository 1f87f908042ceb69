// DeepSpeed spreads the experts of a layer over its ranks: each has the same number of them, and calls its own from 0
// on. Each expert's weights lie in a file of their own, under the number among all ranks' experts. The optimizer of
// each rank has a part of its own experts, and ranks with the same experts have one part each. Sources:
// deepspeed/runtime/engine.py (_save_moe_checkpoint), utils/groups.py (_create_expert_and_data_parallel)
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "meta/formats/deepspeed_compose.h"
#include "meta/formats/deepspeed_step.h"
#include "meta/formats/pickle.h"

namespace ckptfs::meta::formats {

class Experts {
 public:
  explicit Experts(DeepSpeedStep& step) : step_(step) {}

  // `counts`: "num_experts" of model_states.pt, how many each layer has that has any. `config`: its ds_config. Tells
  // which files are not there.
  void expect(const std::optional<Pickle::Value>& counts, const std::optional<Pickle::Value>& config);
  // Are there any?
  bool any() const { return any_; }

  // Makes a group of each rank's experts, of those of the first rank's: with their own names, behind the groups that
  // are there. `partitions`: into how many parts each group is divided, as an optim_states.pt tells.
  void spread(DeepSpeedParts& parts, const std::optional<Pickle::Value>& partitions, uint64_t ranks);
  // Where a rank has its part of the group that all files give this number.
  struct Place {
    size_t group = 0;
    size_t part = 0;
  };
  Place place_of(size_t group, size_t rank) const;

  // Reads the weights from the experts' files.
  void read(DeepSpeedParts& parts);

 private:
  struct Spread {
    size_t first = 0;    // the group of the second rank's experts; the others follow
    size_t holders = 0;  // ranks that have the same experts
    size_t owners = 0;   // sets of experts
  };

  using Trained = std::map<std::string_view, const Member*>;
  void read_file(uint32_t index, uint64_t number, const Trained& trained, DeepSpeedParts& parts);

  DeepSpeedStep& step_;
  bool any_ = false;
  bool data_first_ = false;  // ranks that have the same experts follow each other
  std::map<size_t, Spread> spread_;
};

}  // namespace ckptfs::meta::formats
