#include "fs/data_path.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "io/fault.h"
#include "io/log.h"

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

DataPath::Written DataPath::write(std::span<const std::byte> data, off_t offset, std::span<std::byte> around) {
  if (const auto fault = io::fault_point("fs.write"); !fault) return {0, fault.error()};
  Written total = is_direct() ? write_in_parts(data, offset, around) : write_buffered(buffered(), data, offset);
  add(counters_.bytes_written, total.bytes);
  return total;
}

DataPath::Written DataPath::write_in_parts(std::span<const std::byte> data, off_t offset, std::span<std::byte> around) {
  const off_t end = offset + static_cast<off_t>(data.size());
  const off_t body_start = std::min(align_up(offset, border(offset)), end);
  const off_t body_end = std::max(align_down(end, border(end)), body_start);
  if (body_start == body_end) return write_buffered(buffered(), data, offset);
  if (body_start == offset && body_end == end) return write_direct(data, offset);
  return write_and_meet(data, offset, body_start, body_end, around);
}

// The body, with those of its head and tail that meet another write's, and that one's; then the others of the two.
DataPath::Written DataPath::write_and_meet(std::span<const std::byte> data, off_t offset, off_t body_start,
                                           off_t body_end, std::span<std::byte> around) {
  using Side = Borders::Border::Side;
  const off_t end = offset + static_cast<off_t>(data.size());
  Borders::Border head{Side::head, offset, data.first(static_cast<size_t>(body_start - offset))};
  Borders::Border tail{Side::tail, end, data.last(static_cast<size_t>(end - body_end))};
  const Borders::Met met = borders_.meet(head, tail);
  if (met.alone && !head.bytes.empty()) expect_page(offset);
  if (met.alone && !tail.bytes.empty()) expect_page(end);

  const size_t skipped = met.before != nullptr ? 0 : head.bytes.size();
  const size_t left_out = met.after != nullptr ? 0 : tail.bytes.size();
  const auto own = data.subspan(skipped, data.size() - skipped - left_out);
  const auto before = met.before != nullptr ? met.before->bytes : std::span<const std::byte>();
  const auto after = met.after != nullptr ? met.after->bytes : std::span<const std::byte>();
  const off_t start = offset + static_cast<off_t>(skipped) - static_cast<off_t>(before.size());
  const auto whole = join(before, own, after, around, alignment_.memory);
  Written written = whole.empty() ? Written{0, Error(ENOMEM)} : write_direct(whole, start);
  // Others may wait for these; only then may this one wait.
  if (met.before != nullptr) end_taken(*met.before, written.bytes >= before.size(), start);
  if (met.after != nullptr) end_taken(*met.after, !written.error, end);
  const auto head_error = skipped > 0 ? end_offered(head, offset) : std::nullopt;
  const auto tail_error = left_out > 0 ? end_offered(tail, body_end) : std::nullopt;

  if (head_error) return {0, head_error};
  const size_t done = std::min(written.bytes - std::min(written.bytes, before.size()), own.size());
  if (done < own.size()) return {skipped + done, std::move(written.error)};
  return {skipped + done + (tail_error ? 0 : left_out), tail_error};
}

// All three in a row: around `own` where it lies, if that may be and is aligned then, else in the bounce; empty when
// memory is short.
std::span<const std::byte> DataPath::join(std::span<const std::byte> before, std::span<const std::byte> own,
                                          std::span<const std::byte> after, std::span<std::byte> around,
                                          size_t alignment) {
  if (before.empty() && after.empty()) return own;
  const size_t size = before.size() + own.size() + after.size();
  const size_t at = around.empty() ? 0 : static_cast<size_t>(own.data() - around.data());
  const bool in_place = before.size() <= at && at + own.size() + after.size() <= around.size() &&
                        is_aligned(own.data() - before.size(), alignment);
  const auto room = in_place ? around.subspan(at - before.size()) : bounce.get(size);
  if (room.size() < size) return {};
  const auto joined = room.first(size);
  std::ranges::copy(before, joined.begin());
  if (!in_place) std::ranges::copy(own, joined.subspan(before.size()).begin());
  std::ranges::copy(after, joined.last(after.size()).begin());
  return joined;
}

// What another write has of a page that was to be written with this one's.
void DataPath::end_taken(Borders::Border& taken, bool is_there, off_t offset) {
  if (is_there) add(counters_.joined_borders);
  borders_.written(taken, is_there ? std::nullopt : write_buffered(buffered(), taken.bytes, offset).error);
}

// What this write has of a page that nobody may have written with the rest of it.
std::optional<Error> DataPath::end_offered(Borders::Border& offered, off_t offset) {
  const auto is_left = borders_.withdraw(offered);
  if (!is_left) return is_left.error();
  return is_left.value() ? write_buffered(buffered(), offered.bytes, offset).error : std::nullopt;
}

// A page that is written in part is read from the disk before, not under the file's lock.
void DataPath::expect_page(off_t at) const {
  ::posix_fadvise(buffered(), align_down(at, kPage), kPage, POSIX_FADV_WILLNEED);
}

// What a body that begins or ends near `at` is aligned to. A buffered head or tail takes its whole page: a direct write
// to the rest of that page would have to write it back first.
off_t DataPath::border(off_t at) const {
  const off_t block = static_cast<off_t>(alignment_.offset);
  return at % block == 0 ? block : std::max(block, kPage);
}

// The body where its memory is aligned, else a copy in the bounce; empty when memory is short.
std::span<const std::byte> DataPath::aligned(std::span<const std::byte> body) const {
  if (is_aligned(body.data(), alignment_.memory)) return body;
  const auto buffer = bounce.get(body.size());
  if (!buffer.empty()) std::memcpy(buffer.data(), body.data(), body.size());
  return buffer;
}

DataPath::Written DataPath::write_direct(std::span<const std::byte> body, off_t offset) {
  if (const auto fault = io::fault_point("fs.write_direct"); !fault) return {0, fault.error()};
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
    log::warn(
        "O_DIRECT {} refused by the store's file system (alignment taken for memory {}, offset {}): such opens "
        "are buffered instead",
        operation, alignment_.memory, alignment_.offset);
  }
}

}  // namespace ckptfs::fs
