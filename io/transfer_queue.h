// Reads and writes of files, many in flight at a time, begun and finished by one thread: by io_uring, with the files
// and the memory registered so that the kernel neither looks up the one nor pins the other for each transfer; else by
// threads that call pread and pwrite (containers forbid io_uring as a rule). What the kernel refused is logged, and
// told by way().
//
// A transfer is of full length: where the kernel did less, the rest is asked for again.
//
// Thread safety: owned by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "io/result.h"

namespace ckptfs::io {

class TransferQueue {
 public:
  enum class Kind : uint8_t { read, write };
  struct Transfer {
    Kind kind = Kind::read;
    int fd = -1;
    size_t file = 0;  // its index in what use_files() was given
    std::span<std::byte> memory;
    uint64_t offset = 0;
    size_t least = 0;  // bytes without which it has failed (EIO): a read beyond a file's end may bring fewer than asked
    uint64_t tag = 0;  // the caller's
  };
  struct Finished {
    uint64_t tag = 0;
    Result<size_t> bytes = size_t{0};
  };
  // What is used, of what there is.
  struct Way {
    bool io_uring = false;
    bool registered_memory = false;
    bool registered_files = false;
  };

  // `depth`: so many transfers may be in flight. `memory`: what most transfers use; it stays the caller's, and longer
  // than the queue.
  static std::unique_ptr<TransferQueue> make(unsigned depth, std::span<std::byte> memory);
  TransferQueue() = default;
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;
  virtual ~TransferQueue() = default;  // nothing may be in flight

  // The files of the transfers to come; with nothing in flight. They stay the caller's, until it is told of others.
  virtual void use_files(std::span<const int> files) = 0;
  // EBUSY: `depth` are in flight.
  virtual Result<> begin(const Transfer& transfer) = 0;
  // Waits for one that has ended, in any order; something is in flight.
  virtual Finished finish() = 0;
  virtual Way way() const = 0;
  // false: it takes no transfer any more, and another one is to be made.
  virtual bool is_usable() const = 0;
};

}  // namespace ckptfs::io
