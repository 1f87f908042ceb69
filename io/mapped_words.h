// Words of 64 bits in a file, written through a mapping: a store costs no call, and survives the process (not the
// machine: nothing is synced).
//
// Thread safety: any thread; a word belongs to one thread at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "io/result.h"

namespace ckptfs::io {

class MappedWords {
 public:
  // `count` words of the file from `offset` on (a multiple of the page), which all exist.
  static Result<MappedWords> map(int fd, off_t offset, size_t count);
  MappedWords() = default;
  MappedWords(MappedWords&& other) noexcept;
  MappedWords& operator=(MappedWords&& other) noexcept;
  ~MappedWords();

  // In the order of the calls, as whoever reads the file sees it. EIO: the disk has no room for its page, or failed.
  Result<> store(size_t index, uint64_t word) const;

 private:
  uint64_t* words_ = nullptr;
  size_t count_ = 0;
};

}  // namespace ckptfs::io
