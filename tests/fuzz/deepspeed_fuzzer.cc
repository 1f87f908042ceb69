// Any bytes as the model_states.pt and the optim_states.pt of a rank, beside swap files of some lengths; or as those of
// a pipeline, of experts, and of tensor parallel ranks.
#include "meta/formats/deepspeed.h"

#include <algorithm>

#include "tests/fuzz/input_step.h"

namespace {

constexpr uint8_t kPipeline = 4, kExperts = 5, kTensorParallel = 6;

size_t length_at(std::span<const uint8_t> data) { return data[0] | size_t{data[1]} << 8; }

// A pipeline's stage, experts, or two tensor parallel ranks: the length of the optim_states.pt (2 bytes), it, and a
// third file.
void add_spread(uint8_t kind, std::span<const uint8_t> model, std::span<const uint8_t> rest, ckptfs::InputStep& step) {
  const size_t length = rest.size() < 2 ? 0 : std::min(length_at(rest), rest.size() - 2);
  const auto optimizer = rest.subspan(std::min<size_t>(2, rest.size())).first(length);
  const auto third = rest.subspan(std::min<size_t>(2, rest.size()) + length);
  for (const std::string rank : {"mp_rank_00_", "mp_rank_01_"}) {
    if (kind != kTensorParallel && rank == "mp_rank_01_") continue;
    step.add((kind == kTensorParallel ? "zero_pp_rank_0_" : "") + rank + "model_states.pt", model);
    step.add("zero_pp_rank_0_" + rank + "optim_states.pt", optimizer);
  }
  if (kind == kPipeline) step.add("layer_00-model_states.pt", third);
  if (kind == kPipeline) step.add("layer_01-model_states.pt", third);
  if (kind == kExperts) step.add("layer_0_expert_0_mp_rank_00_model_states.pt", third);
}

}  // namespace

// The stage, or what is spread over ranks (1 byte); the length of the first file (2 bytes); both files.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t head = 3;
  if (size < head) return 0;
  const std::span content(data + head, size - head);
  const size_t length = std::min(length_at({data + 1, 2}), content.size());
  ckptfs::InputStep step;
  if (data[0] >= kPipeline && data[0] <= kTensorParallel) {
    add_spread(data[0], content.first(length), content.subspan(length), step);
  } else {
    step.add(data[0] == 3 ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt",
             content.first(length));
    step.add("zero_pp_rank_0_mp_rank_00_optim_states.pt", content.subspan(length));
    const std::vector<uint8_t> swapped(4096);
    for (const char* name : {"1_3.tensor.swp", "exp_avg-1_3.tensor.swp"}) {
      step.add(std::string("offloaded_tensors/rank00/") + name, swapped);
    }
  }
  const auto map = ckptfs::meta::formats::read_deepspeed(step, "");
  check(step, map);
  check_facts(step, map);
  return 0;
}
