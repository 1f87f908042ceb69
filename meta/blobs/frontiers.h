// Where files that are being adopted (fs/adopt/speculative_clone.h) end for now: such a blob holds more than was
// written so far.
//
// A blob is *unsettled* from before it becomes a clone of a guess until its true content is durable: its mode says so
// (Blobs::set_unsettled), in the same log as its blocks and so never later than they. After a power loss nothing is
// known of it, and it is emptied, as any file that was never synced may be. After a kill of the daemon it is cut where
// its frontier was: the file STORE/frontiers, which the kernel keeps, has that for each unsettled blob.
//
// Format: a line that names the format and the boot, padded to 4096 bytes; then slots of blob and frontier, each 64
// bits in the machine's own order (it never outlives the boot). Written through a mapping (io/mapped_words.h), since
// each WRITE that is adopted moves a frontier.
//
// So that a start need not ask millions of blobs for their mode, the index keeps a number below which all blobs are
// settled (kSettledKey). The reaper raises it each second. A blob below it becomes unsettled only after a lower number
// is durable: that costs a sync, for a file that is emptied and copied over.
//
// Thread safety: take() from any thread; a Slot belongs to one thread at a time and not longer than its Frontiers.
// A Slot that is destroyed without give_back() leaves its entry: the blob is unsettled still.
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

class Frontiers {
 public:
  // In place of a frontier: the file is as long as its blob.
  static constexpr uint64_t kWhole = UINT64_MAX;

  // Reads what the last daemon left. Made where it is missing.
  static Result<std::unique_ptr<Frontiers>> open(const std::string& file, Index& index);
  // Where the blob ends, if a daemon of this boot said so.
  std::optional<uint64_t> left(BlobNumber blob) const;
  // Forgets what was left, but of the blobs that could not be cut, and belongs to this boot from now on.
  Result<> begin(const std::vector<BlobNumber>& uncut);
  // All blobs below were settled when the last daemon ended.
  BlobNumber settled_below() const {
    const io::MutexLock lock(mutex_);
    return settled_;
  }
  // Raises that number for the next start.
  Result<> raise_settled();
  // Takes the mark off a blob that the last daemon had settled, but for its mode. Not off one that has a slot again.
  Result<> take_off_mark(BlobNumber blob, int fd);

  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept;
    Slot& operator=(Slot&& other) noexcept;
    ~Slot() = default;

    explicit operator bool() const { return owner_ != nullptr; }
    Result<> set(uint64_t frontier);
    // The blob is settled.
    void give_back();

   private:
    friend class Frontiers;
    Slot(Frontiers& owner, size_t position, BlobNumber blob) : owner_(&owner), position_(position), blob_(blob) {}

    Frontiers* owner_ = nullptr;
    size_t position_ = 0;
    BlobNumber blob_ = 0;
  };
  // A slot for `blob`, with frontier 0. None when all are taken; an error when the disk took it not.
  Result<std::optional<Slot>> take(BlobNumber blob);

 private:
  Frontiers(io::Fd file, std::string boot, Index& index)
      : file_(std::move(file)), boot_(std::move(boot)), index_(index) {}
  Result<> read();
  std::optional<size_t> take_position(BlobNumber blob);
  Result<> record_settled(BlobNumber below) REQUIRES(mutex_);
  Result<> lower_settled(BlobNumber blob) EXCLUDES(mutex_);
  Result<> write(size_t position, BlobNumber blob, uint64_t frontier) const;
  Result<> set_frontier(size_t position, uint64_t frontier) const;
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
