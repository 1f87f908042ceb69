// Reads and writes of files, many in flight at a time, all begun and finished by one thread. It uses io_uring, with
// registered files and registered memory, so that the kernel does not look up the file and pin the memory for each
// transfer. Where io_uring is not available, as in most containers, threads call pread and pwrite instead. Each refusal
// of the kernel is logged, and way() tells what is used.
//
// Each transfer is of full length: after a short read or write the rest is requested again.
//
// Thread safety: one thread at a time owns it.
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
    size_t file = 0;  // its index in the list given to use_files()
    std::span<std::byte> memory;
    uint64_t offset = 0;
    // with fewer bytes it fails (EIO); a read at the end of a file may bring fewer bytes than requested
    size_t least = 0;
    uint64_t tag = 0;  // for the caller's use
  };
  struct Finished {
    uint64_t tag = 0;
    Result<size_t> bytes = size_t{0};
  };
  // Which of the faster ways are in use.
  struct Way {
    bool io_uring = false;
    bool registered_memory = false;
    bool registered_files = false;
  };

  // `depth` is the largest number of transfers in flight. `memory` is what most transfers use: `depth` slots of the
  // same size, each of which is registered, and its pages are made, when a transfer first uses it. The caller owns it,
  // and it must outlive the queue.
  static std::unique_ptr<TransferQueue> make(unsigned depth, std::span<std::byte> memory);
  TransferQueue() = default;
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;
  virtual ~TransferQueue() = default;  // nothing may be in flight

  // Sets the files of the following transfers. Nothing may be in flight. The caller keeps them open until the next
  // call.
  virtual void use_files(std::span<const int> files) = 0;
  // Fails with EBUSY if `depth` transfers are in flight.
  virtual Result<> begin(const Transfer& transfer) = 0;
  // Waits for any transfer to end. At least one must be in flight.
  virtual Finished finish() = 0;
  virtual Way way() const = 0;
  // False if it can take no more transfers; make a new queue then.
  virtual bool is_usable() const = 0;
};

}  // namespace ckptfs::io
