#include "io/write_in_flight.h"

#include <liburing.h>

#include <cerrno>

#include "io/fault.h"

namespace ckptfs::io {

WriteInFlight::WriteInFlight() = default;
WriteInFlight::~WriteInFlight() { drop_ring(); }

Result<> WriteInFlight::make_ring() {
  TRY(fault_point("io_uring"));
  auto ring = std::make_unique<io_uring>();
  const int outcome = io_uring_queue_init(1, ring.get(), 0);
  if (outcome != 0) return Error(-outcome, "io_uring_queue_init");
  ring_ = std::move(ring);
  return success();
}

void WriteInFlight::drop_ring() {
  if (ring_) io_uring_queue_exit(ring_.get());
  ring_.reset();
}

Result<> WriteInFlight::begin(int fd, std::span<const std::byte> data, off_t offset) {
  if (!ring_) TRY(make_ring());
  io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
  if (entry == nullptr) return Error(EBUSY, "io_uring: a write is in flight already");
  io_uring_prep_write(entry, fd, data.data(), static_cast<unsigned>(data.size()), static_cast<uint64_t>(offset));
  int submitted = 0;
  do {
    submitted = io_uring_submit(ring_.get());
  } while (submitted == -EINTR);
  if (submitted == 1) return success();
  drop_ring();  // the ring still has the entry, and would submit it with the next one
  return Error(submitted < 0 ? -submitted : EAGAIN, "io_uring_submit");
}

Result<size_t> WriteInFlight::finish() {
  io_uring_cqe* completion = nullptr;
  // Only the write's completion ends the wait: until then the kernel uses the memory.
  while (io_uring_wait_cqe(ring_.get(), &completion) != 0) {
  }
  const int written = completion->res;
  io_uring_cqe_seen(ring_.get(), completion);
  if (written < 0) return Error(-written, "write");
  return static_cast<size_t>(written);
}

}  // namespace ckptfs::io
