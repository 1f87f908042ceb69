// Any bytes as the files of a step that is not DeepSpeed's: PyTorch's DCP, also Megatron's, weights of Hugging Face
// with their index, what libckptfs saved, what ranks saved by themselves, or an adapter beside DeepSpeed's.
#include "meta/formats/checkpoint.h"

#include <algorithm>
#include <array>

#include "tests/fuzz/input_step.h"

namespace {

using Names = std::array<const char*, 3>;
constexpr std::array<Names, 8> kKinds{
    Names{".metadata", "__0_0.distcp", "__1_0.distcp"},
    Names{"model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
    Names{"pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"},
    Names{"model.safetensors", "config.json", "optimizer.pt"},
    Names{"ckptfs.rank00.json", "rank00.safetensors", "rank01.safetensors"},
    Names{"actor/model_world_size_2_rank_0.pt", "actor/model_world_size_2_rank_1.pt",
          "critic/model_world_size_1_rank_0.pt"},
    Names{".metadata", "__0_0.distcp", "common.pt"},
    Names{"adapter_model.safetensors", "global_step1/zero_pp_rank_0_mp_rank_00_model_states.pt",
          "global_step1/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"}};

}  // namespace

// The kind (1 byte), the lengths of the first two files (2 bytes each), three files.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t head = 5;
  if (size < head) return 0;
  std::span content(data + head, size - head);
  ckptfs::InputStep step;
  for (size_t number = 0; number < 3; ++number) {
    const size_t told = number < 2 ? data[1 + 2 * number] | size_t{data[2 + 2 * number]} << 8 : content.size();
    const size_t length = std::min(told, content.size());
    step.add(kKinds[data[0] % kKinds.size()][number], content.first(length));
    content = content.subspan(length);
  }
  const auto map = ckptfs::meta::formats::read_checkpoint(step);
  check(step, map);
  check_facts(step, map);
  check(step, ckptfs::meta::formats::read_checkpoint(step, {.boxes = true, .saved_names = true}));
  return 0;
}
