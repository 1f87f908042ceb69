#include "fs/data_path.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "io/fault.h"

namespace ckptfs::fs {

namespace {

// One bounce a thread: a request is done with it before the thread takes the next.
thread_local io::AlignedBuffer bounce;

constexpr off_t align_down(off_t value, off_t alignment) { return value - value % alignment; }
constexpr off_t align_up(off_t value, off_t alignment) { return align_down(value + alignment - 1, alignment); }

constexpr off_t kPage = 4096;

bool is_aligned(const void* memory, size_t alignment) { return reinterpret_cast<uintptr_t>(memory) % alignment == 0; }

ssize_t pread_retrying(int fd, std::span<std::byte> buffer, off_t offset) {
  ssize_t n = 0;
  do {
    n = ::pread(fd, buffer.data(), buffer.size(), offset);
  } while (n < 0 && errno == EINTR);
  return n;
}

ssize_t pwrite_retrying(int fd, std::span<const std::byte> data, off_t offset) {
  ssize_t n = 0;
  do {
    n = ::pwrite(fd, data.data(), data.size(), offset);
  } while (n < 0 && errno == EINTR);
  return n;
}

DataPath::Written write_buffered(int fd, std::span<const std::byte> data, off_t offset) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = pwrite_retrying(fd, data.subspan(done), offset + static_cast<off_t>(done));
    if (n < 0) return {done, last_error("write")};
    if (n == 0) return {done, Error(EIO, "write: no progress")};
    done += static_cast<size_t>(n);
  }
  return {done, std::nullopt};
}

}  // namespace

Result<std::span<const std::byte>> DataPath::read(size_t size, off_t offset) {
  TRY(io::fault_point("fs.read"));
  auto result = is_direct() ? read_direct(size, offset) : read_buffered(size, offset);
  if (result) add(counters_.bytes_read, result.value().size());
  return result;
}

Result<std::span<const std::byte>> DataPath::read_buffered(size_t size, off_t offset) {
  const auto buffer = bounce.get(size);
  if (buffer.size() < size) return Error(ENOMEM);
  TRY_ASSIGN(const size_t n, io::read_full(buffered(), buffer.first(size), offset));
  return std::span<const std::byte>(buffer.first(n));
}

Result<std::span<const std::byte>> DataPath::read_direct(size_t size, off_t offset) {
  const off_t block = static_cast<off_t>(alignment_.offset);
  TRY_ASSIGN(const struct stat status, io::stat_fd(descriptors_.direct.get()));
  const off_t start = align_down(offset, block);
  const off_t end = std::min(align_up(offset + static_cast<off_t>(size), block), align_up(status.st_size, block));
  if (offset >= status.st_size || end <= start) return std::span<const std::byte>();

  const size_t length = static_cast<size_t>(end - start);
  const auto buffer = bounce.get(length);
  if (buffer.size() < length) return Error(ENOMEM);
  size_t done = 0;
  while (done < length) {
    const ssize_t n = pread_retrying(descriptors_.direct.get(), buffer.subspan(done, length - done),
                                     start + static_cast<off_t>(done));
    if (n < 0) {
      // EIO may be the race with a growing end of file; a bad sector fails again, buffered.
      if (errno != EINVAL && errno != EIO) return last_error("read");
      if (errno == EINVAL) direct_was_refused("read");
      return read_buffered(size, offset);
    }
    done += static_cast<size_t>(n);
    if (n == 0 || done % alignment_.offset != 0) break;  // the end of the file
  }
  const size_t skip = static_cast<size_t>(offset - start);
  if (done <= skip) return std::span<const std::byte>();
  return std::span<const std::byte>(buffer.subspan(skip, std::min(size, done - skip)));
}

DataPath::Written DataPath::write(std::span<const std::byte> data, off_t offset) {
  if (const auto fault = io::fault_point("fs.write"); !fault) return {0, fault.error()};
  Written total;
  // Writes `part`, which follows what is written already; false: stop.
  const auto append = [&](std::span<const std::byte> part, bool direct) {
    if (part.empty()) return true;
    const off_t at = offset + static_cast<off_t>(total.bytes);
    Written written = direct ? write_direct(part, at) : write_buffered(buffered(), part, at);
    total.bytes += written.bytes;
    total.error = std::move(written.error);
    return !total.error.has_value();
  };
  if (is_direct()) {
    const off_t end = offset + static_cast<off_t>(data.size());
    const off_t body_start = std::min(align_up(offset, border(offset)), end);
    const off_t body_end = std::max(align_down(end, border(end)), body_start);
    const size_t head = static_cast<size_t>(body_start - offset);
    const size_t body = static_cast<size_t>(body_end - body_start);
    if (append(data.first(head), false) && append(data.subspan(head, body), true)) {
      append(data.subspan(head + body), false);
    }
  } else {
    append(data, false);
  }
  add(counters_.bytes_written, total.bytes);
  return total;
}

// What a body that begins or ends near `at` is aligned to. A buffered head or tail takes its whole page: a direct write
// to the rest of that page would have to write it back first.
off_t DataPath::border(off_t at) const {
  const off_t block = static_cast<off_t>(alignment_.offset);
  return at % block == 0 ? block : std::max(block, kPage);
}

DataPath::Written DataPath::write_direct(std::span<const std::byte> body, off_t offset) {
  std::span<const std::byte> source = body;
  if (!is_aligned(body.data(), alignment_.memory)) {
    const auto buffer = bounce.get(body.size());
    if (buffer.size() < body.size()) return {0, Error(ENOMEM)};
    std::memcpy(buffer.data(), body.data(), body.size());
    source = buffer.first(body.size());
  }
  size_t done = 0;
  while (done < source.size()) {
    const ssize_t n =
        pwrite_retrying(descriptors_.direct.get(), source.subspan(done), offset + static_cast<off_t>(done));
    const bool refused = n < 0 && errno == EINVAL;
    if (n < 0 && !refused) return {done, last_error("write")};
    if (n == 0) return {done, Error(EIO, "write: no progress")};
    if (refused) direct_was_refused("write");
    if (n > 0) done += static_cast<size_t>(n);
    if (refused || done % alignment_.offset != 0) {
      // What is left begins inside a block (a short write) or is not to be had directly.
      Written rest = write_buffered(buffered(), source.subspan(done), offset + static_cast<off_t>(done));
      return {done + rest.bytes, std::move(rest.error)};
    }
  }
  return {done, std::nullopt};
}

void DataPath::direct_was_refused(const char* operation) {
  if (direct_refused_.exchange(true)) return;
  add(counters_.direct_fallbacks);
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true)) {
    spdlog::warn(
        "O_DIRECT {} refused by the store's file system (alignment taken for memory {}, offset {}): such opens "
        "are buffered instead",
        operation, alignment_.memory, alignment_.offset);
  }
}

}  // namespace ckptfs::fs
