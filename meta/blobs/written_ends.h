// The written ends of speculative clones (fs/adopt/speculative_clone.h). The blob of such a file is longer than what
// was written so far, its *written end*.
//
// A blob is *unsettled* from before it becomes a clone of a predicted source until its true content is durable. Its
// mode says so (Blobs::set_unsettled). The mode is in the same log as the blob's blocks, so it is never durable later
// than they are. After a power loss the written end of an unsettled blob is lost, and the blob is emptied, as any file
// may be that was never synced. After a kill of the daemon it is truncated to its written end. The file
// STORE/frontiers, which is then in the page cache still, has the written end of each unsettled blob.
//
// Format of that file: a line that names the format and the boot, padded to 4096 bytes. Then slots of a blob number and
// a written end, each 64 bits in the machine's own order, since the file is of no use after the boot. Slots are written
// through a mapping (io/mapped_words.h), since each WRITE to a speculative clone moves its written end.
//
// A start must not read the mode of millions of blobs. So the index keeps a number below which all blobs are settled
// (kSettledKey). The reaper raises it each second. Before a blob below the number becomes unsettled, a lower number is
// made durable. That costs a sync for a file that is emptied and copied over.
//
// Thread safety: take() from any thread; a Slot belongs to one thread at a time and not longer than its WrittenEnds. A
// Slot that is destroyed without give_back() leaves its entry: the blob is unsettled still.
// Lock: mutex_, before those of Index; not held across a sync.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/fd.h"
#include "io/mapped_words.h"
#include "io/mutex.h"
#include "meta/index/index.h"
#include "meta/types.h"

namespace ckptfs::meta {

class WrittenEnds {
 public:
  // In place of a written end: the file is as long as its blob.
  static constexpr uint64_t kWhole = UINT64_MAX;

  // Reads the entries that the last daemon left. Makes the file if it is missing.
  static Result<std::unique_ptr<WrittenEnds>> open(const std::string& file, Index& index);
  // The written end that the last daemon left for the blob. None: no entry, or the entries are of an earlier boot.
  std::optional<uint64_t> left(BlobNumber blob) const;
  // Drops the entries that were left, except those of blobs that could not be truncated. From now on the file belongs
  // to this boot.
  Result<> begin(const std::vector<BlobNumber>& not_truncated);
  // All blobs with lower numbers were settled when the last daemon ended.
  BlobNumber settled_below() const {
    const io::MutexLock lock(mutex_);
    return settled_;
  }
  // Raises that number for the next start.
  Result<> raise_settled();
  // Clears the mark of a blob whose content the last daemon had made durable, unless the blob has a slot again.
  Result<> take_off_mark(BlobNumber blob, int fd);

  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept;
    Slot& operator=(Slot&& other) noexcept;
    ~Slot() = default;

    explicit operator bool() const { return owner_ != nullptr; }
    Result<> set(uint64_t written_end);
    // The blob is settled.
    void give_back();

   private:
    friend class WrittenEnds;
    Slot(WrittenEnds& owner, size_t position, BlobNumber blob) : owner_(&owner), position_(position), blob_(blob) {}

    WrittenEnds* owner_ = nullptr;
    size_t position_ = 0;
    BlobNumber blob_ = 0;
  };
  // A slot for `blob`, with written end 0. None if all slots are taken. An error if the slot could not be written.
  Result<std::optional<Slot>> take(BlobNumber blob);

 private:
  WrittenEnds(io::Fd file, std::string boot, Index& index)
      : file_(std::move(file)), boot_(std::move(boot)), index_(index) {}
  Result<> read();
  std::optional<size_t> take_position(BlobNumber blob);
  Result<> record_settled(BlobNumber below) REQUIRES(mutex_);
  Result<> lower_settled(BlobNumber blob) EXCLUDES(mutex_);
  Result<> write(size_t position, BlobNumber blob, uint64_t written_end) const;
  Result<> set_end(size_t position, uint64_t written_end) const;
  Result<> empty(size_t position) const;
  std::string header() const;

  const io::Fd file_;
  const std::string boot_;
  Index& index_;
  io::MappedWords slots_;                          // from begin() on
  std::unordered_map<BlobNumber, uint64_t> left_;  // until begin()
  mutable io::Mutex mutex_;
  std::vector<size_t> free_ GUARDED_BY(mutex_);
  // Slots that could not be emptied still name their blob: it has no other.
  std::unordered_map<BlobNumber, size_t> kept_ GUARDED_BY(mutex_);
  std::set<BlobNumber> unsettled_ GUARDED_BY(mutex_);  // have a slot
  BlobNumber settled_ GUARDED_BY(mutex_) = 0;          // durable, or the number there is lower
  BlobNumber recorded_ GUARDED_BY(mutex_) = 0;         // what the index has
};

}  // namespace ckptfs::meta
