// Any bytes as the model_states.pt and the optim_states.pt of a rank, beside swap files of some lengths.
#include "meta/formats/deepspeed.h"

#include <algorithm>

#include "tests/fuzz/input_step.h"

// The stage (1 byte), the length of the first file (2 bytes), both files.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t head = 3;
  if (size < head) return 0;
  const std::span content(data + head, size - head);
  const size_t length = std::min<size_t>(data[1] | size_t{data[2]} << 8, content.size());
  ckptfs::InputStep step;
  step.add(data[0] == 3 ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt",
           content.first(length));
  step.add("zero_pp_rank_0_mp_rank_00_optim_states.pt", content.subspan(length));
  const std::vector<uint8_t> swapped(4096);
  for (const char* name : {"1_3.tensor.swp", "exp_avg-1_3.tensor.swp"}) {
    step.add(std::string("offloaded_tensors/rank00/") + name, swapped);
  }
  const auto map = ckptfs::meta::formats::read_deepspeed(step, "");
  check(step, map);
  check_facts(step, map);
  return 0;
}
