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
// other, but for one thing: its blob counts as *unsettled* (meta/blobs/written_ends.h) until it is durable, by an fsync
// or in the background.
//
// A file qualifies if nobody else has it open and if it is open for writing only, so that nobody can map it. O_DIRECT
// (DeepSpeed's swap files), O_SYNC, O_DSYNC and O_APPEND rule it out.
//
// WRITEs are compared with the source's own pages (io/file_window.h) as long as nobody can have changed the source:
// the copier has just read them into the page cache. Otherwise they are compared with the file's own clone.
//
// Thread safety: SpeculativeClone: all of it. Lock: mutex_, held while bytes are compared and written, and while the
// blob is truncated. So a truncation waits for the WRITE that is under way; then the source may be closed. Order: after
// meta's Gate, before the leaves.
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
#include "meta/blobs/written_ends.h"

namespace ckptfs::fs {

class SpeculativeClone {
 public:
  static constexpr size_t kBlock = 4096;                     // what is compared, and what a clone is made of
  static constexpr size_t kSampled = size_t{64} << 10;       // one block in so many bytes is compared at first
  static constexpr size_t kMostSampled = size_t{1} << 20;    // and in the end, while nothing is the same
  static constexpr uint64_t kPatience = uint64_t{64} << 20;  // wrong bytes before a source is given up

  // The file that the new file is predicted to be a copy of: an open file, and its shared descriptor.
  struct Source {
    std::shared_ptr<OpenFile> file;
    int descriptor = -1;
    SourcePredictor::By by = SourcePredictor::By::reader;
    bool frozen = false;     // never changes
    uint64_t changes = 0;    // of `file`, when it was opened
    bool unchanged = false;  // nobody could change it when it was opened

    bool is_unchanged() const { return frozen || (unchanged && file->changes.load() == changes); }
  };
  // Called with the result of each clone of the source. Returns the result to use.
  using Shared = std::function<Result<>(Result<>)>;
  SpeculativeClone(InodeNumber inode, std::string name, Source source, meta::WrittenEnds& written_ends,
                   Counters& counters, Shared shared)
      : inode_(inode),
        name_(std::move(name)),
        source_(std::move(source)),
        written_ends_(written_ends),
        counters_(counters),
        shared_(std::move(shared)) {}

  InodeNumber inode() const { return inode_; }
  const std::string& name() const { return name_; }
  const Source& source() const { return source_; }

  // Nobody truncates while this is held. It is held from before others can find the clone until prepare() was called,
  // or is not to be.
  io::Mutex& mutex() RETURN_CAPABILITY(mutex_) { return mutex_; }
  // `blob` (O_RDWR, empty) may become a clone of the source.
  void prepare(io::Fd blob, meta::BlobNumber number) REQUIRES(mutex_);

  // Takes some of `data`, from its beginning. If there is no error, the caller writes the rest.
  DataPath::Written write(std::span<const std::byte> data, off_t offset);
  // The blob ends at the written end from now on. Nothing is compared any more, and the source is not used again.
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
  void source_unreadable(const Error& error) REQUIRES(mutex_);
  Result<> truncate_locked() REQUIRES(mutex_);
  Result<> drop_clone() REQUIRES(mutex_);
  bool is_wrong() const REQUIRES(mutex_) { return mismatched_ > compared_ / 2; }
  Result<Differing> compare_blocks(std::span<const std::byte> data, uint64_t offset) REQUIRES(mutex_);
  Result<bool> is_alike(std::span<const std::byte> data, uint64_t offset) REQUIRES(mutex_);
  Result<> put(std::span<const std::byte> data, uint64_t offset) REQUIRES(mutex_);
  DataPath::Written write_differing(std::span<const std::byte> data, const Differing& differing, uint64_t offset)
      REQUIRES(mutex_);

  const InodeNumber inode_;
  const std::string name_;
  const Source source_;
  meta::WrittenEnds& written_ends_;
  Counters& counters_;
  const Shared shared_;

  io::Mutex mutex_;
  io::FileWindow window_ GUARDED_BY(mutex_);         // of the source
  io::Fd blob_ GUARDED_BY(mutex_);                   // O_RDWR, from prepare() until it is truncated
  meta::BlobNumber number_ GUARDED_BY(mutex_) = 0;   // of the blob
  meta::WrittenEnds::Slot slot_ GUARDED_BY(mutex_);  // until it is durable
  bool ending_ GUARDED_BY(mutex_) = false;           // a truncation was asked for: nothing is compared any more
  uint64_t clone_size_ GUARDED_BY(mutex_) = 0;
  uint64_t compared_ GUARDED_BY(mutex_) = 0;
  uint64_t mismatched_ GUARDED_BY(mutex_) = 0;
  size_t sampled_ GUARDED_BY(mutex_) = kSampled;  // one block of so many bytes is looked at before it starts
  uint64_t strange_ GUARDED_BY(mutex_) = 0;       // bytes of the last WRITEs of which nothing was there
  unsigned clones_ GUARDED_BY(mutex_) = 0;        // how often it was started
  timespec written_ GUARDED_BY(mutex_){};         // the last write
  std::atomic<uint64_t> written_end_{0};
  std::atomic<bool> adopting_{false};
};

}  // namespace ckptfs::fs
