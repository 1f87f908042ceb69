// Any bytes as a safetensors file; a header that can be read is written, and must come back.
#include "meta/formats/safetensors.h"

#include "tests/fuzz/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ckptfs::meta::formats;  // NOLINT(google-build-using-namespace)
  const auto header = read_safetensors_header(ckptfs::input_file(data, size).get());
  if (!header) return 0;
  std::string again = safetensors_header(header.value());
  for (const SafeTensor& tensor : header.value().tensors) again.append(tensor.size, 'd');
  const auto* const bytes = reinterpret_cast<const uint8_t*>(again.data());
  const auto back = read_safetensors_header(ckptfs::input_file(bytes, again.size()).get());
  if (!back || back.value().tensors.size() != header.value().tensors.size()) std::abort();
  return 0;
}
