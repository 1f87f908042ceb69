// Any bytes as the model_states.pt and the optim_states.pt of a rank, beside swap files of some lengths: whatever the
// reader says that a tensor is has to lie inside the files and to have the tensor's length.
#include "meta/formats/deepspeed.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/fuzz/input_file.h"

namespace {

using namespace ckptfs::meta::formats;  // NOLINT(google-build-using-namespace)

class Input : public StepFiles {
 public:
  // The stage (1 byte), the length of the first file (2 bytes), both files.
  Input(const uint8_t* data, size_t size) {
    constexpr size_t head = 3;
    if (size < head) return;
    const size_t length = std::min<size_t>(data[1] | size_t{data[2]} << 8, size - head);
    const char* const model = data[0] == 3 ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt";
    add(model, data + head, length);
    add("zero_pp_rank_0_mp_rank_00_optim_states.pt", data + head + length, size - head - length);
    const std::vector<uint8_t> swapped(4096);
    for (const char* name : {"1_3.tensor.swp", "exp_avg-1_3.tensor.swp"}) {
      add(std::string("offloaded_tensors/rank00/") + name, swapped.data(), swapped.size());
    }
  }
  const std::vector<File>& list() const override { return files_; }
  ckptfs::Result<ckptfs::io::Fd> open(uint32_t index) const override {
    return ckptfs::io::Fd(::dup(descriptors_[index].get()));
  }

 private:
  void add(const std::string& path, const uint8_t* data, size_t size) {
    files_.push_back({path, size});
    descriptors_.push_back(ckptfs::input_file(data, size));
  }
  std::vector<File> files_;
  std::vector<ckptfs::io::Fd> descriptors_;
};

void check(const Input& input, const Tensor& tensor) {
  uint64_t size = 0;
  for (const Piece& piece : tensor.pieces) {
    const uint64_t whole = input.list().at(piece.file).size;
    if (piece.offset > whole || piece.size > whole - piece.offset) std::abort();
    size += piece.size;
  }
  if (elements_of(tensor.shape).value() * size_of(tensor.dtype) != size) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Input input(data, size);
  for (const Parameter& parameter : read_deepspeed(input, "").parameters) {
    for (const auto& [state, tensor] : parameter.states) check(input, tensor);
  }
  return 0;
}
