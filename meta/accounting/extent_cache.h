// Where blobs lie on the disk, remembered: what counts blocks asks for thousands of blobs again and again, and most
// never change.
//
// A frozen blob's blocks move only when we move them ourselves (dedup): whoever does calls forget(). But those that XFS
// allocated ahead of its writer it takes back at a time of its own: a blob that has some counts as live. A live blob's
// are believed while size, blocks and ctime are what they were, if nobody had it open for writing when they were read
// and its last change was a while ago then: a change within the same tick of the kernel's clock would not show.
//
// Thread safety: all of it. Lock: mutex_ (a leaf), held for look-ups only, never across a system call.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "io/mutex.h"
#include "meta/blobs/blobs.h"
#include "meta/types.h"

namespace ckptfs::meta {

class ExtentCache {
 public:
  struct Run {
    uint64_t physical = 0;  // kNoPlace: not on the disk yet
    uint64_t length = 0;
  };
  static constexpr uint64_t kNoPlace = UINT64_MAX;

  // How much the blob may change while it is read.
  enum class Blob : uint8_t {
    frozen,
    idle,  // live, nobody has it open for writing
    busy,  // read, not remembered
  };

  // `budget`: bytes of memory, at most.
  ExtentCache(const Blobs& blobs, size_t budget) : blobs_(blobs), budget_(budget) {}

  // Calls `visit` for each run of blocks, the dirty pages of the blob written before. For none, where there is no such
  // blob (any more).
  Result<> for_each(BlobNumber number, Blob kind, const std::function<void(const Run&)>& visit);

  // Its blocks have moved, or are about to and will be forgotten again then.
  void forget(BlobNumber number);
  // Forgets all but these (ascending).
  void keep(std::span<const BlobNumber> blobs);

  struct Counts {
    uint64_t hits = 0;
    uint64_t reads = 0;
    size_t bytes = 0;
  };
  Counts counts() const;

 private:
  struct Entry {
    std::shared_ptr<const std::vector<Run>> runs;
    bool frozen = false;
    struct stat stat {};  // when it was read

    size_t bytes() const { return 2 * sizeof(Entry) + runs->capacity() * sizeof(Run); }
  };
  std::shared_ptr<const std::vector<Run>> remembered(BlobNumber number, Blob kind);
  void remember(BlobNumber number, Entry entry, uint64_t forgotten);
  void erase(std::unordered_map<BlobNumber, Entry>::iterator at) REQUIRES(mutex_);

  const Blobs& blobs_;
  const size_t budget_;
  mutable io::Mutex mutex_;
  std::unordered_map<BlobNumber, Entry> entries_ GUARDED_BY(mutex_);
  Counts counts_ GUARDED_BY(mutex_);
  uint64_t forgotten_ GUARDED_BY(mutex_) = 0;  // how often forget() was called
};

}  // namespace ckptfs::meta
