// Copying a range between two files of the store: blocks that can be shared are, only the edges are copied.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "io/result.h"

namespace ckptfs::fs {

struct CopyRange {
  int from = -1;  // readable
  int to = -1;    // writable
  off_t from_offset = 0;
  off_t to_offset = 0;
  uint64_t length = 0;
  bool share = true;  // else all of it is copied
};

struct Copied {
  uint64_t cloned = 0;         // bytes that now share blocks
  uint64_t copied = 0;         // bytes that were copied
  bool clone_refused = false;  // sharing was possible by its offsets, but the file system did not
  std::optional<Error> error;  // why it ended early, if that was an error

  uint64_t bytes() const { return cloned + copied; }
};

// Copies up to `length` bytes, never beyond the end of `from`; fewer are legal (long copies that cannot share blocks
// are cut at kMaximumCopy). The ranges do not overlap. Stateless; any thread.
inline constexpr uint64_t kMaximumCopy = uint64_t{256} << 20;
Copied copy_range(const CopyRange& range);

}  // namespace ckptfs::fs
