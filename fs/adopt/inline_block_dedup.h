// Inline dedup of blocks: for files that cannot begin as a speculative clone (fs/adopt/speculative_clone.h), because
// their writer may map them (O_RDWR) or because their name says nothing yet. safetensors, rsync and most programs that
// write under a temporary name and then rename work so, often after an ftruncate to the full length.
//
// The first WRITE tells what the file is a copy of: the file of the step before (fs/adopt/source_predictor.h) that has
// the same bytes there and, if the writer has set a size, this size. From then on, where the source has the same whole
// blocks at the same offset, they are shared by FICLONERANGE instead of written. The blob holds at any time exactly
// what was written, so nothing else has to know: any order of writes, any other writer, mapping, truncation or crash is
// as on a plain file. Compared with a clone this costs a call for each run of equal blocks, and the blocks at the
// borders of WRITEs are written.
//
// Only a source that nobody can be changing is shared. After each FICLONERANGE the daemon checks that it did not change
// meanwhile; where it may have, the bytes are written.
//
// Thread safety: all of it. Lock: mutex_ (held while the source is chosen, during one WRITE; before the leaves).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fs/adopt/speculative_clone.h"
#include "fs/base/counters.h"
#include "fs/open/data_path.h"
#include "io/mutex.h"
#include "meta/types.h"

namespace ckptfs::fs {

class InlineBlockDedup {
 public:
  // What it needs from outside; called with no leaf locked.
  struct Environment {
    std::function<Result<io::Fd>(InodeNumber)> open_uncounted;          // O_RDONLY, counted nowhere
    std::function<Result<SpeculativeClone::Source>(InodeNumber)> open;  // counted until it is closed
    std::function<void(const SpeculativeClone::Source&)> close;
    std::function<Result<>(const SpeculativeClone::Source&, Result<>)>
        shared;  // called with the result of each clone; returns the result to use
  };
  // `candidates`: what the file may hold; not empty. `name`: for the log.
  InlineBlockDedup(std::string name, std::vector<InodeNumber> candidates, Environment environment, Counters& counters)
      : name_(std::move(name)),
        environment_(std::move(environment)),
        counters_(counters),
        candidates_(std::move(candidates)) {}
  InlineBlockDedup(const InlineBlockDedup&) = delete;
  InlineBlockDedup& operator=(const InlineBlockDedup&) = delete;
  ~InlineBlockDedup();

  // Shares or writes all of `data`; `plain` writes.
  DataPath::Written write(std::span<const std::byte> data, off_t offset, DataPath& plain);

 private:
  // A part of a WRITE, [begin, end).
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    bool shared = false;
  };

  const SpeculativeClone::Source* source_for(std::span<const std::byte> data, off_t offset, int blob);
  Result<std::optional<InodeNumber>> choose(std::span<const std::byte> data, off_t offset, int blob) const
      REQUIRES(mutex_);
  std::vector<Part> parts(const SpeculativeClone::Source& source, std::span<const std::byte> data, uint64_t offset);
  bool share(const SpeculativeClone::Source& source, int blob, off_t offset, size_t size);
  void withdraw(int blob, off_t offset, size_t size) const;
  void give_up(const Error& reason);

  const std::string name_;
  const Environment environment_;
  Counters& counters_;

  io::Mutex mutex_;
  std::vector<InodeNumber> candidates_ GUARDED_BY(mutex_);             // until one was chosen, or none
  std::optional<SpeculativeClone::Source> source_ GUARDED_BY(mutex_);  // once it is set, constant
  std::atomic<uint64_t> compared_{0};
  std::atomic<uint64_t> mismatched_{0};
  std::atomic<bool> ended_{false};  // nothing is compared any more
};

}  // namespace ckptfs::fs
