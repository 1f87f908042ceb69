#include "io/write_in_flight.h"

#include <liburing.h>

#include <cerrno>

#include "io/fault.h"

namespace ckptfs::io {

WriteInFlight::WriteInFlight() : ring_(std::make_unique<io_uring>()) {
  int outcome = 0;
  if (const auto fault = fault_point("io_uring"); !fault) {
    outcome = -fault.error().errno_value();
  } else {
    outcome = io_uring_queue_init(1, ring_.get(), 0);
  }
  if (outcome == 0) return;
  status_ = Error(-outcome, "io_uring_queue_init");
  ring_.reset();
}

WriteInFlight::~WriteInFlight() {
  if (ring_) io_uring_queue_exit(ring_.get());
}

Result<> WriteInFlight::begin(int fd, std::span<const std::byte> data, off_t offset) {
  if (!ring_) return status_;
  io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
  if (entry == nullptr) return Error(EBUSY, "io_uring: a write is in flight already");
  io_uring_prep_write(entry, fd, data.data(), static_cast<unsigned>(data.size()), static_cast<uint64_t>(offset));
  int submitted = 0;
  do {
    submitted = io_uring_submit(ring_.get());
  } while (submitted == -EINTR);
  return submitted == 1 ? Result<>(success()) : Error(-submitted, "io_uring_submit");
}

Result<size_t> WriteInFlight::finish() {
  io_uring_cqe* completion = nullptr;
  // Nothing but the write's end ends the wait: until then its memory is the kernel's.
  while (io_uring_wait_cqe(ring_.get(), &completion) != 0) {
  }
  const int written = completion->res;
  io_uring_cqe_seen(ring_.get(), completion);
  if (written < 0) return Error(-written, "write");
  return static_cast<size_t>(written);
}

}  // namespace ckptfs::io
