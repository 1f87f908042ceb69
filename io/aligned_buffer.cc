#include "io/aligned_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

#include "io/fault.h"
#include "io/retry.h"
#include "io/text.h"

namespace ckptfs::io {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr DirectAlignment kUnknownAlignment{4096, 4096};

std::optional<size_t> parse_size(std::string_view text) {
  const auto value = parse_number<size_t>(text);
  return value == size_t{0} ? std::nullopt : value;
}

// Replaces the kernel's answer by "MEMORY" or "MEMORY:OFFSET". A part that is no number changes nothing.
DirectAlignment overridden(DirectAlignment asked, const std::string& value) {
  const std::string_view text = value;
  const size_t colon = text.find(':');
  asked.memory = parse_size(text.substr(0, colon)).value_or(asked.memory);
  if (colon != std::string_view::npos) asked.offset = parse_size(text.substr(colon + 1)).value_or(asked.offset);
  return asked;
}

DirectAlignment ask_kernel(int fd) {
  struct statx answer {};
  const int status = retry_interrupted([&] { return ::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &answer); });
  if (status != 0 || (answer.stx_mask & STATX_DIOALIGN) == 0) return kUnknownAlignment;
  // Zeros mean that the file takes no direct I/O at all.
  if (answer.stx_dio_mem_align == 0 || answer.stx_dio_offset_align == 0) return kUnknownAlignment;
  return {answer.stx_dio_mem_align, answer.stx_dio_offset_align};
}

}  // namespace

std::span<std::byte> AlignedBuffer::get(size_t size) {
  if (size > size_) {
    const size_t alignment = size >= kHugePage / 2 ? kHugePage : kAlignment;
    const size_t rounded = (size + alignment - 1) / alignment * alignment;
    if (rounded < size) return {};
    data_.reset();
    size_ = 0;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
    if (!data_) return {};
    // This is only advice: without huge pages the memory works, too.
    if (alignment == kHugePage) ::madvise(data_.get(), rounded, MADV_HUGEPAGE);
    size_ = rounded;
  }
  return {data_.get(), size};
}

DirectAlignment direct_alignment(int fd) {
  const DirectAlignment asked = ask_kernel(fd);
  const std::optional<std::string> value = fault_value("dioalign");
  return value ? overridden(asked, *value) : asked;
}

}  // namespace ckptfs::io
