// Chunks of a remote, kept on the local disk by their digests, up to a number of bytes. The one that was used longest
// ago goes first.
//
// The folder holds nothing else: "chunks", a file of slots of 1 MiB, and after a clean end "index", which tells what is
// in which slot. The index is removed when it has been read, so after an unclean end the cache is empty. Whoever reads
// a chunk compares it with its digest, so what a disk or a person has changed is fetched anew.
//
// Thread safety: all of it. Lock: mutex_ (a leaf), not held while a slot is read or written: a slot may get another
// chunk meanwhile, which the digest tells.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/digest.h"
#include "io/fd.h"
#include "io/mutex.h"
#include "io/result.h"

namespace ckptfs::meta::remote {

class ChunkCache {
 public:
  // Makes the folder if it is missing. EBUSY: another process has it. ENOTEMPTY, naming it: it holds something else.
  static Result<std::unique_ptr<ChunkCache>> open(const std::string& folder, uint64_t bytes);
  // Without close() the next open() finds it empty.
  Result<> close();

  // Reads the chunk if it is there, has this length, and has its digest. `room`: of a whole chunk, aligned to pages. It
  // is read past the page cache, since the pages of the file that it is read for are kept by who reads.
  bool read(const io::Digest& digest, size_t length, std::span<std::byte> room);
  bool has(const io::Digest& digest) const;
  // Keeps the chunk, unless the disk is full or fails: that is counted, and told in the log once.
  void add(const io::Digest& digest, std::span<const std::byte> bytes);

  struct Usage {
    uint64_t chunks = 0;
    uint64_t most = 0;    // chunks
    uint64_t failed = 0;  // chunks that could not be kept, or not be read back
  };
  Usage usage() const;

 private:
  struct Kept {
    io::Digest digest{};
    uint32_t slot = 0;
    uint32_t length = 0;
  };
  using Order = std::list<Kept>;  // the one that was used last is the last one
  struct Hash {
    size_t operator()(const io::Digest& digest) const;
  };

  ChunkCache(std::string folder, uint64_t slots) : folder_(std::move(folder)), slots_(slots) {}
  Result<> read_index();
  // A slot that nothing is kept in any more. None: each is being written.
  std::optional<uint32_t> take_slot() REQUIRES(mutex_);
  void drop(Order::iterator kept) REQUIRES(mutex_);
  void note_failure(const Error& error) REQUIRES(mutex_);
  Result<size_t> read_slot(uint32_t slot, size_t length, std::span<std::byte> room) const;

  const std::string folder_;
  const uint64_t slots_;
  io::Fd chunks_;
  io::Fd direct_;  // the same, with O_DIRECT; none: the file system refuses it
  mutable io::Mutex mutex_;
  Order order_ GUARDED_BY(mutex_);
  std::unordered_map<io::Digest, Order::iterator, Hash> by_digest_ GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);  // slots below next_
  uint64_t next_ GUARDED_BY(mutex_) = 0;           // slots from here on were never used
  uint64_t failed_ GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptfs::meta::remote
