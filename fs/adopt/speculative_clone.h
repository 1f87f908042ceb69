// A speculative clone: a file that is copied by READs and WRITEs, and that costs no second copy on the disk.
//
// When a file was just made or emptied, the daemon predicts which file it will be a copy of, its *source*
// (fs/adopt/source_predictor.h). The writer sends WRITEs in order, from offset 0. The daemon compares samples of each
// WRITE with the source. Once a WRITE is mostly the same, the file's blob becomes a clone of the source, and each WRITE
// is compared with what the blob holds there: equal bytes are dropped, other bytes are written. Copy-on-write makes
// both right. The offset that the writer has reached is the *written end*: everybody sees the file end there, though
// its blob goes on. After 1 MiB of WRITEs of which nothing was the same, the clone is dropped, until a WRITE is mostly
// the same again. So a wrong prediction costs little, and a source that is right in parts is used for these parts.
//
// Anything else that happens to the file (a write elsewhere, another open, a new size or time, fallocate, a copy into
// it, fsync, a save, the last close) first *truncates* the blob to the written end. Afterwards the file is like any
// other, but for one thing: its blob counts as *unsettled* (meta/blobs/frontiers.h) until it is durable, by an fsync or
// in the background.
//
// A file qualifies if nobody else has it open and if it is open for writing only, so that nobody can map it. O_DIRECT
// (DeepSpeed's swap files), O_SYNC, O_DSYNC and O_APPEND rule it out.
//
// WRITEs are compared with the source's own pages (io/file_window.h) as long as nobody can have changed the source:
// the copier has just read them into the page cache. Otherwise they are compared with the file's own clone.
//
// Thread safety: SpeculativeClone: all of it. Lock: mutex_, held while bytes are compared and written, and while the
// blob is truncated. So a truncation waits for the WRITE that is under way and for its read-ahead; then the source may
// be closed. Order: after meta's Gate, before the leaves.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "fs/adopt/source_predictor.h"
#include "fs/base/counters.h"
#include "fs/open/data_path.h"
#include "fs/open/open_files.h"
#include "io/fd.h"
#include "io/file_window.h"
#include "io/mutex.h"
#include "io/read_ahead.h"
#include "meta/blobs/frontiers.h"

namespace ckptfs::fs {

class SpeculativeClone {
 public:
  static constexpr size_t kBlock = 4096;                     // what is compared, and what a clone is made of
  static constexpr size_t kSampled = size_t{64} << 10;       // one block of so many bytes is looked at first
  static constexpr size_t kMostSampled = size_t{1} << 20;    // and at last, where nothing of the guess is right
  static constexpr uint64_t kPatience = uint64_t{64} << 20;  // wrong bytes before a guess is given up

  // What the file will probably hold: an open file, and its shared descriptor.
  struct Guess {
    std::shared_ptr<OpenFile> file;
    int descriptor = -1;
    SourcePredictor::By by = SourcePredictor::By::reader;
    bool frozen = false;     // never changes
    uint64_t changes = 0;    // of `file`, when nobody could change it; else of no use
    bool unchanged = false;  // nobody could change it then
  };
  // `shared`: told what became of a clone of the guess; its answer counts.
  using Shared = std::function<Result<>(Result<>)>;
  SpeculativeClone(InodeNumber inode, std::string name, Guess guess, meta::Frontiers& frontiers, Counters& counters,
                   Shared shared)
      : inode_(inode),
        name_(std::move(name)),
        guess_(std::move(guess)),
        frontiers_(frontiers),
        counters_(counters),
        shared_(std::move(shared)) {}

  InodeNumber inode() const { return inode_; }
  const std::string& name() const { return name_; }
  const Guess& guess() const { return guess_; }

  // Nobody truncates while this is held. It is held from before others can find the clone until prepare() was called,
  // or is not to be.
  io::Mutex& mutex() RETURN_CAPABILITY(mutex_) { return mutex_; }
  // `blob` (O_RDWR, empty) may become a clone of the guess.
  void prepare(io::Fd blob, meta::BlobNumber number) REQUIRES(mutex_);

  // What it took of `data`, from its beginning; the rest, where there is no error, is the caller's to write.
  DataPath::Written write(std::span<const std::byte> data, off_t offset);
  // What the next WRITE of `size` bytes will be compared with is got at hand, while its writer fetches it. To be called
  // once a WRITE is answered; does nothing while another is served. `in_lockstep`: this thread will serve it.
  void look_ahead(size_t size, bool in_lockstep);
  // The blob ends at the written end from now on. Nothing is compared any more, and the guess is not used again.
  Result<> truncate_to_written();
  // Truncates, has `sync` make the content durable, and gives the slot back: the file is like any other, durably after
  // the next fsync. `blob`: any descriptor of it.
  Result<> make_durable(int blob, const std::function<Result<>()>& sync);

  bool is_durable();
  // The file is gone for good, with its blob.
  void abandon();
  // The written end, while the blob goes on behind it.
  std::optional<uint64_t> size() const;
  // Was more right than wrong? None: nothing was compared.
  std::optional<bool> was_right();

 private:
  static constexpr size_t kMostBlocks = 258;   // that a WRITE touches
  using Differing = std::bitset<kMostBlocks>;  // of the file's blocks that a WRITE touches

  Result<std::optional<size_t>> begin(std::span<const std::byte> data, uint64_t written_end) REQUIRES(mutex_);
  Result<bool> seems_right(std::span<const std::byte> data, uint64_t written_end) REQUIRES(mutex_);
  uint64_t next_sample(uint64_t offset) const REQUIRES(mutex_);
  void expect_samples(uint64_t offset, size_t size) const REQUIRES(mutex_);
  Result<std::optional<size_t>> start(std::span<const std::byte> data, uint64_t written_end) REQUIRES(mutex_);
  DataPath::Written compare(std::span<const std::byte> data, uint64_t written_end) REQUIRES(mutex_);
  void guess_unreadable(const Error& error) REQUIRES(mutex_);
  Result<> truncate_locked() REQUIRES(mutex_);
  Result<> drop_clone() REQUIRES(mutex_);
  bool is_wrong() const REQUIRES(mutex_) { return mismatched_ > compared_ / 2; }
  bool guess_is_unchanged() const {
    return guess_.frozen || (guess_.unchanged && guess_.file->changes.load() == guess_.changes);
  }
  Result<Differing> compare_blocks(std::span<const std::byte> data, uint64_t offset) REQUIRES(mutex_);
  Result<bool> is_alike(std::span<const std::byte> data, uint64_t offset) REQUIRES(mutex_);
  Result<> put(std::span<const std::byte> data, uint64_t offset) REQUIRES(mutex_);
  DataPath::Written write_differing(std::span<const std::byte> data, const Differing& differing, uint64_t offset)
      REQUIRES(mutex_);

  const InodeNumber inode_;
  const std::string name_;
  const Guess guess_;
  meta::Frontiers& frontiers_;
  Counters& counters_;
  const Shared shared_;

  io::Mutex mutex_;
  io::FileWindow window_ GUARDED_BY(mutex_);        // of the guess
  io::Fd blob_ GUARDED_BY(mutex_);                  // O_RDWR, from prepare() until it is truncated
  meta::BlobNumber number_ GUARDED_BY(mutex_) = 0;  // of the blob
  meta::Frontiers::Slot slot_ GUARDED_BY(mutex_);   // until it is durable
  bool ending_ GUARDED_BY(mutex_) = false;          // a truncation was asked for: nothing is compared any more
  uint64_t clone_size_ GUARDED_BY(mutex_) = 0;
  uint64_t compared_ GUARDED_BY(mutex_) = 0;
  uint64_t mismatched_ GUARDED_BY(mutex_) = 0;
  size_t sampled_ GUARDED_BY(mutex_) = kSampled;  // one block of so many bytes is looked at before it starts
  uint64_t strange_ GUARDED_BY(mutex_) = 0;       // bytes of the last WRITEs of which nothing was there
  io::ReadAhead read_ahead_ GUARDED_BY(mutex_);   // of the guess, for its reader and compare()
  unsigned clones_ GUARDED_BY(mutex_) = 0;        // how often it was started
  timespec written_ GUARDED_BY(mutex_){};         // the last write
  std::atomic<uint64_t> written_end_{0};
  std::atomic<bool> adopting_{false};
};

}  // namespace ckptfs::fs
