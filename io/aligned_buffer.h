// A buffer for O_DIRECT: page-aligned, grown on demand, never shrunk. From 1 MiB up it asks for huge pages, because the
// kernel pins one of those much faster than 512 small ones. One thread at a time owns it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace ckptfs::io {

class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 4096;

  // Returns at least `size` bytes, aligned to kAlignment. Growing the buffer loses its earlier content. Returns an
  // empty span when memory is short.
  std::span<std::byte> get(size_t size);

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_{nullptr, &std::free};
  size_t size_ = 0;
};

// The alignment that O_DIRECT demands of the file behind a descriptor, in bytes (statx STATX_DIOALIGN, Linux 6.1).
struct DirectAlignment {
  size_t memory = 512;
  size_t offset = 512;
  // DeepSpeed's O_DIRECT fails with EINVAL where memory needs more than 4 bytes of alignment or offsets more than 1
  // KiB. DeepSpeed ignores that error and trains on whatever its buffer held.
  bool harmful() const { return memory > 4 || offset > 1024; }
};

// The only place that asks the kernel. Returns {4096, 4096} where the kernel cannot tell. In builds with fault points,
// the point "dioalign" (value MEMORY or MEMORY:OFFSET) overrides the answer.
DirectAlignment direct_alignment(int fd);

}  // namespace ckptfs::io
