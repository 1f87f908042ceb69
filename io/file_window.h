// A piece of a file, mapped for reading, that moves along with whoever goes through the file: what is compared with it
// need not be copied out of the page cache first.
//
// Thread safety: belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/result.h"

namespace ckptfs::io {

class FileWindow {
 public:
  static constexpr size_t kSize = size_t{4} << 20;  // of the piece, at least

  FileWindow() = default;
  FileWindow(const FileWindow&) = delete;
  FileWindow& operator=(const FileWindow&) = delete;
  ~FileWindow() { close(); }

  // `size` bytes of the file from `offset` on, valid until the next call; only to be read within access_mapped()
  // (io/sigbus.h), as there may be fewer. `fd`: the same from call to call until close().
  Result<std::span<const std::byte>> at(int fd, uint64_t offset, size_t size);
  // It holds the file no longer.
  void close();

 private:
  std::byte* memory_ = nullptr;
  size_t length_ = 0;
  uint64_t begin_ = 0;
};

}  // namespace ckptfs::io
