// Memory that O_DIRECT can use: page-aligned, from 1 MiB up on huge pages where the kernel has some (it pins one of
// those much faster than 512 small ones), grown on demand, never shrunk. Owned by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace ckptfs::io {

class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 4096;

  // At least `size` bytes at a multiple of kAlignment; earlier content is lost when it has to grow. Empty when memory
  // is short.
  std::span<std::byte> get(size_t size);

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_{nullptr, &std::free};
  size_t size_ = 0;
};

// What O_DIRECT demands of the file behind a descriptor (statx STATX_DIOALIGN, Linux 6.1), in bytes.
struct DirectAlignment {
  size_t memory = 512;
  size_t offset = 512;
  // DeepSpeed's O_DIRECT is harmed where memory needs more than 4 bytes or offsets more than 1 KiB (reference: it
  // ignores EINVAL and trains on what its buffer held).
  bool harmful() const { return memory > 4 || offset > 1024; }
};

// The one place that asks. Where the kernel cannot tell: {4096, 4096}. The fault point "dioalign" (value MEMORY or
// MEMORY:OFFSET) overrides the answer in builds with fault points.
DirectAlignment direct_alignment(int fd);

}  // namespace ckptfs::io
