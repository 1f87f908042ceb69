// Sharing equal blocks one by one: for a file that cannot begin as a clone (fs/adoption.h), because its writer may map
// it (O_RDWR), or because its name says nothing yet. safetensors, rsync and most programs that write under a temporary
// name are such writers: they often ftruncate to the full length first, and rename at the end.
//
// What the file will probably hold is found with its first WRITE: the file of the step before (fs/guesses.h) that has
// the same bytes there and, if the writer has set a size, this size. From then on the whole blocks of each WRITE that
// the guess has at the same offset become shared by FICLONERANGE instead of being written. The blob holds at any time
// what was written, no more and no less. So nobody else has to know of it: any order, any other writer, a mapping, a
// truncation or a crash are as on a plain file, and nothing has to be cut or recovered. The price against a clone is
// one call for each run of equal blocks. The blocks at the borders of WRITEs are written.
//
// Only a guess that nobody can be changing is shared. After each clone we look whether it changed meanwhile; if it may
// have, what was to be written is written.
//
// Thread safety: all of it. Lock: mutex_ (held while the guess is chosen, during one WRITE; before the leaves).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fs/adoption.h"
#include "fs/counters.h"
#include "fs/data_path.h"
#include "meta/types.h"

namespace ckptfs::fs {

class BlockAdoption {
 public:
  // What it needs from outside; called with no leaf locked.
  struct Environment {
    std::function<Result<io::Fd>(InodeNumber)> look;           // O_RDONLY, counted nowhere
    std::function<Result<Adoption::Guess>(InodeNumber)> open;  // counted until it is closed
    std::function<void(const Adoption::Guess&)> close;
    std::function<Result<>(const Adoption::Guess&, Result<>)> shared;  // told what became of a clone; its answer counts
  };
  // `candidates`: what the file may hold; not empty. `name`: for the log.
  BlockAdoption(std::string name, std::vector<InodeNumber> candidates, Environment environment, Counters& counters)
      : name_(std::move(name)),
        environment_(std::move(environment)),
        counters_(counters),
        candidates_(std::move(candidates)) {}
  BlockAdoption(const BlockAdoption&) = delete;
  BlockAdoption& operator=(const BlockAdoption&) = delete;
  ~BlockAdoption();

  // Shares or writes all of `data`; `plain` writes.
  DataPath::Written write(std::span<const std::byte> data, off_t offset, DataPath& plain);

 private:
  // A part of a WRITE, [begin, end).
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    bool shared = false;
  };

  const Adoption::Guess* guess_for(std::span<const std::byte> data, off_t offset, int blob);
  Result<std::optional<InodeNumber>> choose(std::span<const std::byte> data, off_t offset, int blob) const;
  std::vector<Part> parts(const Adoption::Guess& guess, std::span<const std::byte> data, uint64_t offset);
  bool share(const Adoption::Guess& guess, int blob, off_t offset, size_t size);
  void withdraw(int blob, off_t offset, size_t size) const;
  void give_up(const Error& reason);

  const std::string name_;
  const Environment environment_;
  Counters& counters_;

  std::mutex mutex_;
  std::vector<InodeNumber> candidates_;   // guarded by mutex_; until one was chosen, or none
  std::optional<Adoption::Guess> guess_;  // guarded by mutex_ until it is set, then constant
  std::atomic<uint64_t> compared_{0};
  std::atomic<uint64_t> mismatched_{0};
  std::atomic<bool> ended_{false};  // nothing is compared any more
};

}  // namespace ckptfs::fs
