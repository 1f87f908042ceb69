// Any bytes as a file of torch.save: its tensors, and where they lie, which must be inside the file.
#include "meta/formats/torch_file.h"

#include "tests/fuzz/input_file.h"

namespace {

using ckptfs::meta::formats::Pickle;
using ckptfs::meta::formats::TorchFile;

size_t budget = 0;

void walk(TorchFile& file, const Pickle::Value& value, uint64_t size, unsigned depth) {
  if (depth == 0 || budget == 0) return;
  --budget;
  const auto tensor = TorchFile::tensor(value);
  if (tensor && tensor.value()) {
    const auto range = file.range(*tensor.value());
    if (range && (range.value().offset > size || range.value().size > size - range.value().offset)) std::abort();
  }
  for (size_t at = 0; at < value.size(); ++at) walk(file, value[at], size, depth - 1);
  for (size_t at = 0; at < value.pairs(); ++at) walk(file, value.pair(at).second, size, depth - 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = ckptfs::input_file(data, size);
  auto file = TorchFile::open(input.get());
  budget = 1000;
  if (file) walk(file.value(), file.value().root(), size, 8);
  return 0;
}
