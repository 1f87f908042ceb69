#include "fs/open/data_path.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "io/fault.h"
#include "io/log.h"
#include "io/retry.h"
#include "io/write_in_flight.h"

namespace ckptfs::fs {

namespace {

// One bounce buffer for each thread. A request has finished with it before the thread takes the next request.
thread_local io::AlignedBuffer bounce;
thread_local io::WriteInFlight body_in_flight;

constexpr off_t align_down(off_t value, off_t alignment) { return value - value % alignment; }
constexpr off_t align_up(off_t value, off_t alignment) { return align_down(value + alignment - 1, alignment); }

constexpr off_t kPage = 4096;
constexpr off_t kRequestsInFlight = 16;  // of one writer, at most, as expect_borders() assumes

bool is_aligned(const void* memory, size_t alignment) { return reinterpret_cast<uintptr_t>(memory) % alignment == 0; }

ssize_t pread_retrying(int fd, std::span<std::byte> buffer, off_t offset) {
  return io::retry_interrupted([&] { return ::pread(fd, buffer.data(), buffer.size(), offset); });
}

ssize_t pwrite_retrying(int fd, std::span<const std::byte> data, off_t offset) {
  return io::retry_interrupted([&] { return ::pwrite(fd, data.data(), data.size(), offset); });
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
      // EIO may come from a race with a file that grows. If it comes from a bad sector, the buffered read fails, too.
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
  Written total = is_direct() ? write_in_parts(data, offset) : write_buffered(buffered(), data, offset);
  add(counters_.bytes_written, total.bytes);
  return total;
}

DataPath::Written DataPath::write_in_parts(std::span<const std::byte> data, off_t offset) {
  const off_t end = offset + static_cast<off_t>(data.size());
  const off_t body_start = std::min(align_up(offset, border(offset)), end);
  const off_t body_end = std::max(align_down(end, border(end)), body_start);
  const auto head = data.first(static_cast<size_t>(body_start - offset));
  const auto body = data.subspan(head.size(), static_cast<size_t>(body_end - body_start));
  const auto tail = data.subspan(head.size() + body.size());

  if (!body.empty() && !tail.empty()) expect_borders(end, static_cast<off_t>(data.size()));
  Written first = write_buffered(buffered(), head, offset);
  if (first.error) return first;
  Written rest =
      head.empty() && tail.empty() ? write_direct(body, body_start) : write_body_and_tail(body, tail, body_start);
  return {first.bytes + rest.bytes, std::move(rest.error)};
}

// A page that is written in part is read from the disk first. Starts that read here, so that it does not happen under
// the file's lock: of the page at `end`, and in a stream of such requests also of the page that follows the requests
// that may be in flight already.
void DataPath::expect_borders(off_t end, off_t request) {
  const auto expect = [&](off_t at) { ::posix_fadvise(buffered(), align_down(at, kPage), kPage, POSIX_FADV_WILLNEED); };
  expect(end);
  const off_t in_flight = kRequestsInFlight * request;
  const off_t before = unaligned_end_.exchange(end, std::memory_order_relaxed);
  const bool is_stream = std::abs(end - before) <= in_flight;  // its requests may come in any order
  if (is_stream && end <= std::numeric_limits<off_t>::max() - in_flight) expect(end + in_flight);
}

// Writes the tail while the body is in flight. The file's lock is not held through the direct write: the heads and
// tails of the requests beside it need that lock exclusively, and would wait for the disk each time. With it,
// overwrites at unaligned offsets were half as fast.
DataPath::Written DataPath::write_body_and_tail(std::span<const std::byte> body, std::span<const std::byte> tail,
                                                off_t offset) {
  const off_t tail_offset = offset + static_cast<off_t>(body.size());
  std::optional<Written> last;
  size_t done = 0;
  if (begin_body(body, offset, tail_offset + static_cast<off_t>(tail.size()))) {
    last = write_buffered(buffered(), tail, tail_offset);
    const auto finished = body_in_flight.finish();
    if (finished) done = finished.value() - finished.value() % alignment_.offset;
  }
  // Write again what is missing. If that fails again, its error says why.
  Written total = write_direct(body.subspan(done), offset + static_cast<off_t>(done));
  total.bytes += done;
  if (total.error) return total;
  if (!last) last = write_buffered(buffered(), tail, tail_offset);
  return {total.bytes + last->bytes, std::move(last->error)};
}

// Begins to write the body of a write up to `end`, without the file's lock. False: it did not begin, since
// - the write goes beyond the end of the file. XFS would wait for it all the same, and a body that failed would leave a
//   hole;
// - the body shares a block with a head or tail. That one is buffered, and would read the block before the body has
//   reached it;
// - others have the file open. Their pages may be larger than a block, and a tail would make such a page dirty.
bool DataPath::begin_body(std::span<const std::byte> body, off_t offset, off_t end) {
  struct stat status {};
  if (body.empty() || ::fstat(descriptors_.direct.get(), &status) != 0 || end > status.st_size) return false;
  const bool whole_blocks =
      offset % status.st_blksize == 0 && body.size() % static_cast<size_t>(status.st_blksize) == 0;
  if (!whole_blocks || !is_only_open_()) return false;
  const auto source = aligned(body);
  if (source.empty()) return false;
  const auto begun = body_in_flight.begin(descriptors_.direct.get(), source, offset);
  if (begun) return true;
  add(counters_.io_uring_fallbacks);
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true)) {
    log::warn("{}: overwrites at unaligned offsets wait for the disk one by one", begun.error().message());
  }
  return false;
}

// The alignment of a body that begins or ends near `at`. A buffered head or tail extends over its whole page, since a
// direct write to the rest of that page would have to write the page back first.
off_t DataPath::border(off_t at) const {
  const off_t block = static_cast<off_t>(alignment_.offset);
  return at % block == 0 ? block : std::max(block, kPage);
}

// Returns the body if its memory is aligned, else a copy in the bounce buffer. Empty if memory is short.
std::span<const std::byte> DataPath::aligned(std::span<const std::byte> body) const {
  if (is_aligned(body.data(), alignment_.memory)) return body;
  const auto buffer = bounce.get(body.size());
  if (!buffer.empty()) std::memcpy(buffer.data(), body.data(), body.size());
  return buffer;
}

DataPath::Written DataPath::write_direct(std::span<const std::byte> body, off_t offset) {
  const auto source = aligned(body);
  if (source.size() < body.size()) return {0, Error(ENOMEM)};
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
      // The rest begins inside a block, after a short write, or the file system refused to write it directly.
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
    log::warn(
        "O_DIRECT {} refused by the store's file system (alignment taken for memory {}, offset {}): such opens "
        "are buffered instead",
        operation, alignment_.memory, alignment_.offset);
  }
}

}  // namespace ckptfs::fs
