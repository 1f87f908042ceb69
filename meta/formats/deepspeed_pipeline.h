// A pipeline of DeepSpeed has its model in a file of each layer. Each stage's optimizer knows the layers' parameters by
// the layer's number, "3.weight", and modules that several layers share as "tied_modules.KEY.weight".
// Source: deepspeed/runtime/pipe/module.py (save_state_dict)
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "meta/formats/deepspeed_compose.h"
#include "meta/formats/deepspeed_step.h"

namespace ckptfs::meta::formats {

class PipelineLayers {
 public:
  explicit PipelineLayers(DeepSpeedStep& step) : step_(step) {}

  // Reads the layers of a stage, whose optimizer's parameters are in `parts`: adds the tensors that the model computes
  // with to them, and buffers to the map. `buffers`: names.
  void read_stage(DeepSpeedParts& parts, const std::vector<std::string>& buffers);
  // Checks the layers that no stage has taken: they must be those of tied modules.
  void read_tied();

 private:
  using Names = std::map<std::string, Shape, std::less<>>;
  using Trained = std::map<std::string_view, const Member*>;

  void read_layer(unsigned layer, const Trained& trained, const std::set<std::string, std::less<>>& buffers,
                  DeepSpeedParts& parts);
  std::vector<std::string_view> tied_in(uint32_t file);

  DeepSpeedStep& step_;
  std::set<unsigned> taken_;
  std::map<std::string, Names, std::less<>> tied_;  // by key: names within the module
};

// Of a module that several stages have, the first stage's stays.
void join_stages(MapBuilder& builder);

}  // namespace ckptfs::meta::formats
