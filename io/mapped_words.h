// 64-bit words in a file, written through a mapping. A write costs no system call and survives the process. It does not
// survive the machine, because nothing is synced.
//
// Thread safety: any thread, but only one thread at a time may use a given word.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "io/result.h"

namespace ckptfs::io {

class MappedWords {
 public:
  // Maps `count` words of the file from `offset` on. `offset` must be a multiple of the page size, and the file must be
  // long enough.
  static Result<MappedWords> map(int fd, off_t offset, size_t count);
  MappedWords() = default;
  MappedWords(MappedWords&& other) noexcept;
  MappedWords& operator=(MappedWords&& other) noexcept;
  ~MappedWords();

  // A reader of the file sees the stores in the order of the calls. Fails with EIO if the page cannot be had: the disk
  // is full or has failed.
  Result<> store(size_t index, uint64_t word) const;

 private:
  uint64_t* words_ = nullptr;
  size_t count_ = 0;
};

}  // namespace ckptfs::io
