// A mapped, read-only piece of a file that moves forward with its reader. Comparing data with it needs no copy out of
// the page cache.
//
// Thread safety: one thread at a time owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/result.h"

namespace ckptfs::io {

class FileWindow {
 public:
  static constexpr size_t kSize = size_t{4} << 20;  // the minimum size of the piece

  FileWindow() = default;
  FileWindow(const FileWindow&) = delete;
  FileWindow& operator=(const FileWindow&) = delete;
  ~FileWindow() { close(); }

  // Returns `size` bytes of the file from `offset` on. The span is valid until the next call. Read it only within
  // access_mapped() (io/sigbus.h), because the file may be shorter. `fd` must be the same in all calls until close().
  Result<std::span<const std::byte>> at(int fd, uint64_t offset, size_t size);
  // Unmaps the piece, so that the window no longer keeps the file in use.
  void close();

 private:
  std::byte* memory_ = nullptr;
  size_t length_ = 0;
  uint64_t begin_ = 0;
};

}  // namespace ckptfs::io
