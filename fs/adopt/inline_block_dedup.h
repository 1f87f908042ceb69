// Inline dedup of blocks: a copy that comes by READs and WRITEs costs no second copy on the disk.
//
// When a file was just made or emptied, the daemon predicts which file it will be a copy of, its *source*
// (fs/adopt/source_predictor.h). Where the source has the same whole blocks at the same offset as a WRITE, they are
// shared by FICLONERANGE instead of written. The blob holds what was written, so nothing else has to know: any order of
// writes, any other writer, mapping or truncation is as on a plain file. A call for each WRITE is what it costs. So
// what is written are the blocks at the borders of WRITEs, and runs of less than 32 KiB.
//
// XFS keeps the size that a clone gives a file at once, and that which a write gives it only once its data are on the
// disk. So what was written before a clone's range is brought there first. Else a file that was not synced could have a
// hole in its middle after a power cut, where a plain file ends.
//
// Samples of each WRITE are compared first, since the source may have to be read from the disk. Once half of them are
// the same, each WRITE is compared as a whole, until nothing was the same in 1 MiB. So a wrong prediction costs little,
// and a source that is right in parts is used for these parts. Of several candidates the first WRITE that is not too
// short chooses the one that begins as it does and, if the writer has set a size, has that size.
//
// Only a source that nobody can be changing is shared. Before and after each FICLONERANGE the daemon checks that it did
// not change; where it may have, the bytes are written. If that write fails, or the power is cut before it reaches the
// disk, the range is a hole. WRITEs are compared with the source's own pages (io/file_window.h): a copier has just read
// them into the page cache.
//
// Thread safety: all of it. Lock: mutex_ (held while a WRITE is compared; before the leaves).
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
#include <utility>
#include <vector>

#include "fs/adopt/source_predictor.h"
#include "fs/base/counters.h"
#include "fs/open/data_path.h"
#include "fs/open/open_files.h"
#include "io/fd.h"
#include "io/file_window.h"
#include "io/mutex.h"
#include "meta/types.h"

namespace ckptfs::fs {

class InlineBlockDedup {
 public:
  // An open file, and its shared descriptor.
  struct Source {
    std::shared_ptr<OpenFile> file;
    meta::InodeRecord record;  // its blob stays while the file is open
    int descriptor = -1;
    uint64_t changes = 0;    // of `file`, when it was opened
    bool unchanged = false;  // nobody could change it when it was opened

    bool is_frozen() const { return (record.flags & meta::kFrozen) != 0; }  // it never changes
    bool is_unchanged() const { return is_frozen() || (unchanged && file->changes.load() == changes); }
  };
  // What it needs from outside; called with no leaf locked.
  struct Environment {
    std::function<Result<io::Fd>(InodeNumber)> open_uncounted;  // O_RDONLY, counted nowhere
    std::function<Result<Source>(InodeNumber)> open;            // counted until it is closed
    std::function<void(const Source&)> close;
    std::function<Result<>(const Source&)> begin_sharing;  // before the first clone; both files may owe more and more
    std::function<void(const Source&)> end_sharing;
    std::function<Result<>(int blob, off_t offset)> write_out_before;  // what lies before `offset`, to the disk
    // Called with the result of each clone; returns the result to use.
    std::function<Result<>(const Source&, Result<> cloned)> check;
  };
  // `file` is the new file. It must live longer.
  InlineBlockDedup(const OpenFile& file, std::string name, SourcePredictor::Prediction prediction,
                   Environment environment, Counters& counters)
      : file_(file),
        name_(std::move(name)),
        by_(prediction.by),
        environment_(std::move(environment)),
        counters_(counters),
        candidates_(std::move(prediction.candidates)) {}
  InlineBlockDedup(const InlineBlockDedup&) = delete;
  InlineBlockDedup& operator=(const InlineBlockDedup&) = delete;
  ~InlineBlockDedup();

  // Shares or writes all of `data`; `plain` writes.
  DataPath::Written write(std::span<const std::byte> data, off_t offset, DataPath& plain);

  const std::string& name() const { return name_; }
  SourcePredictor::By by() const { return by_; }
  // Was the prediction more right than wrong? None: nothing was compared.
  std::optional<bool> was_right();

 private:
  static constexpr size_t kBlock = 4096;                     // what is compared and shared
  static constexpr size_t kSmallestRun = size_t{32} << 10;   // below, a call costs more than the blocks
  static constexpr size_t kSampled = size_t{64} << 10;       // one block in so many bytes is compared at first
  static constexpr size_t kMostSampled = size_t{1} << 20;    // and in the end, while nothing is the same
  static constexpr uint64_t kStreak = uint64_t{1} << 20;     // wrong bytes, one after another, before it samples again
  static constexpr uint64_t kPatience = uint64_t{64} << 20;  // wrong bytes before a source is given up

  static constexpr size_t kMostBlocks = 258;  // that a WRITE touches
  using Equal = std::bitset<kMostBlocks>;     // of the whole blocks of a WRITE
  // A part of a WRITE, [begin, end).
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    bool shared = false;
  };

  std::vector<Part> find_parts(std::span<const std::byte> data, off_t offset, int blob);
  Result<bool> open_source(std::span<const std::byte> data, off_t offset, int blob) REQUIRES(mutex_);
  Result<std::optional<InodeNumber>> choose(std::span<const std::byte> data, off_t offset, int blob) const
      REQUIRES(mutex_);
  Result<bool> seems_right(std::span<const std::byte> data, uint64_t offset) REQUIRES(mutex_);
  uint64_t next_sample(uint64_t offset) const REQUIRES(mutex_);
  void expect_samples(uint64_t offset, size_t size) const REQUIRES(mutex_);
  Result<Equal> find_equal(std::span<const std::byte> blocks, uint64_t offset) REQUIRES(mutex_);
  Result<std::vector<Part>> compare(std::span<const std::byte> data, uint64_t offset) REQUIRES(mutex_);
  void note_compared(uint64_t all, uint64_t mismatched) REQUIRES(mutex_);
  bool share(int blob, off_t offset, size_t size);
  void withdraw(int blob, off_t offset, size_t size) const;
  void give_up(const Error& reason);

  const OpenFile& file_;
  const std::string name_;
  const SourcePredictor::By by_;
  const Environment environment_;
  Counters& counters_;

  io::Mutex mutex_;
  std::vector<InodeNumber> candidates_ GUARDED_BY(mutex_);  // until one was chosen, or none
  std::optional<Source> source_;                            // set once, with mutex_ held, before anything is shared
  uint64_t source_size_ GUARDED_BY(mutex_) = 0;
  io::FileWindow window_ GUARDED_BY(mutex_);  // of the source
  bool alike_ GUARDED_BY(mutex_) = false;     // WRITEs are compared as a whole
  size_t sampled_ GUARDED_BY(mutex_) = kSampled;
  uint64_t strange_ GUARDED_BY(mutex_) = 0;  // bytes of the last WRITEs of which nothing was there
  uint64_t compared_ GUARDED_BY(mutex_) = 0;
  uint64_t mismatched_ GUARDED_BY(mutex_) = 0;
  bool sharing_ GUARDED_BY(mutex_) = false;  // begin_sharing() was called
  std::atomic<bool> counted_{false};         // as one of the adoptions
  std::atomic<bool> ended_{false};           // nothing is compared any more
};

}  // namespace ckptfs::fs
