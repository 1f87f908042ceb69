#include "io/file_window.h"

#include <sys/mman.h>

#include <algorithm>

namespace ckptfs::io {

namespace {
constexpr uint64_t kUnit = 64 << 10;  // the kernel maps this much, aligned, on one page fault
}

Result<std::span<const std::byte>> FileWindow::at(int fd, uint64_t offset, size_t size) {
  const bool inside = memory_ != nullptr && offset >= begin_ && offset + size <= begin_ + length_;
  if (!inside) {
    const uint64_t begin = offset / kUnit * kUnit;
    const size_t length = std::max(kSize, (offset - begin + size + kUnit - 1) / kUnit * kUnit);
    if (length != length_) close();
    const int flags = MAP_SHARED | (memory_ != nullptr ? MAP_FIXED : 0);
    void* const mapped = ::mmap(memory_, length, PROT_READ, flags, fd, static_cast<off_t>(begin));
    if (mapped == MAP_FAILED) {
      auto error = last_error("mapping a file");
      close();
      return error;
    }
    memory_ = static_cast<std::byte*>(mapped);
    length_ = length;
    begin_ = begin;
    ::madvise(memory_, length_, MADV_SEQUENTIAL);  // only a hint for read-ahead: a failure does no harm
  }
  return std::span<const std::byte>(memory_ + (offset - begin_), size);
}

void FileWindow::close() {
  if (memory_ != nullptr) ::munmap(memory_, length_);
  memory_ = nullptr;
  length_ = 0;
}

}  // namespace ckptfs::io
