// Reads the descriptions of all ranks. Ranks whose descriptions are equal are one *kind*, and are read once. So are
// equal tables of tensors.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/description.h"
#include "io/result.h"

namespace ckptfs::gpu {

// A tensor that ranks hold parts of. All of them agree about its type and shape.
struct GroupTensor {
  std::string name;
  meta::formats::Dtype dtype = meta::formats::Dtype::float32;
  meta::formats::Shape shape;
  uint32_t rank = 0;  // the first that describes it
};

struct Kind {
  std::vector<uint32_t> ranks;  // ascending
  DescribedBoxes holdings;      // here, `tensor` is an index into Kinds::tensors
};

struct Kinds {
  std::vector<Kind> kinds;
  std::vector<uint32_t> kind_of;  // of each rank
  std::vector<GroupTensor> tensors;
  std::vector<std::unique_ptr<const std::vector<DescribedTensor>>> tables;  // they own boxes of whole tensors
};

// Fails with EINVAL if ranks do not agree about a tensor, with EBADMSG for a description that cannot be read, and with
// E2BIG if there is too much. The words name the rank. The result does not refer to the descriptions.
Result<Kinds> read_kinds(std::span<const std::string_view> descriptions);

// "[4096, 1024]"
std::string text_of(std::span<const uint64_t> shape);

}  // namespace ckptfs::gpu
