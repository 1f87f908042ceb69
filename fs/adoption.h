// Adopting a copy: how a file that is copied by READs and WRITEs takes no second copy on the disk. Python up to 3.13
// copies files so (shutil), and so do tar and rsync; torch.save writes, where most weights are frozen, what the step
// before holds.
//
// The mount predicts what a file that was just made or emptied will hold (fs/guesses.h; the *guess* is another file).
// The WRITEs, strictly one after another from 0, are compared with the guess. First one block in 64 KiB of each WRITE
// is sampled, and where none is equal as few as one in a MiB. The samples are read ahead once the WRITE before is
// answered, since the guess may lie on the disk only. From the first WRITE on whose samples are mostly equal, the blob
// becomes a clone of the guess. Then all bytes are compared with what is there: equal ones are dropped, others are
// written. Copy-on-write makes either right. How far the WRITEs came is the *frontier*. The file ends there for
// everybody, though its blob goes on. After a MiB of which nothing was equal the clone is dropped, until the samples of
// a WRITE are mostly equal again. So a wrong guess costs little, and a right one is used where it is right. After
// kPatience wrong bytes the guess is given up.
//
// Anything else first *cuts* the blob at the frontier: a write elsewhere, another open, a new size or time, fallocate,
// a copy into it, fsync, a save, the last close. From then on the file is like any other, except that it stays
// *unsettled* until it is synced, by fsync or in the background within a second or two (fs/adoptions.h). An unsettled
// blob may hold what nobody wrote, and must never show it. How that survives a crash: meta/frontiers.h.
//
// Only a file that nobody else has open is adopted, opened for writing only, since its writer cannot map it then, and
// without O_DIRECT (DeepSpeed's swap writes), O_SYNC, O_DSYNC or O_APPEND. Where the writer opens it for reading, too,
// or its name says nothing yet, fs/block_adoption.h shares equal blocks instead.
//
// What is compared with: the guess itself, mapped (io/file_window.h). Its reader has just brought the pages into
// memory, and nothing is copied. That is right as long as nobody could have changed the guess. Every open for writing
// and every new size are counted before they happen (OpenFile::changes), and the lease probe finds mappings without a
// descriptor. Otherwise, and where a page cannot be had (SIGBUS, io/sigbus.h), the file's own clone is compared with.
// If that cannot be read either, it is no error of the writer: the file is written plainly from there on.
//
// Where the time goes: most of it is waking threads, not comparing. Python's sendfile writes 64 KiB at a time and waits
// for each answer. fs/workers.h keeps the processors awake and lets one thread serve such a writer; io/read_ahead.h
// reads the guess ahead of its reader, in large folios.
//
// After a wrong guess the mount backs off (fs/trust.h). `ckptfs status --json` counts `adoptions`, `bytes_adopted`,
// `wrong_guesses` and `adoption_fallbacks`. `-o adopt=off` switches all of it off.
//
// Thread safety: Adoption: all of it; lock: mutex_, held while bytes are compared and written, and while the blob is
// cut: whoever cuts waits for the one request that is under way, and for the look ahead behind it, so that the guess
// may be closed then. Order: after meta's Gate, before the leaves.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "fs/counters.h"
#include "fs/data_path.h"
#include "fs/guesses.h"
#include "fs/open_files.h"
#include "io/fd.h"
#include "io/file_window.h"
#include "io/read_ahead.h"
#include "meta/frontiers.h"

namespace ckptfs::fs {

class Adoption {
 public:
  static constexpr size_t kBlock = 4096;                     // what is compared, and what a clone is made of
  static constexpr size_t kSampled = size_t{64} << 10;       // one block of so many bytes is looked at first
  static constexpr size_t kMostSampled = size_t{1} << 20;    // and at last, where nothing of the guess is right
  static constexpr uint64_t kPatience = uint64_t{64} << 20;  // wrong bytes before a guess is given up

  // What the file will probably hold: an open file, and its shared descriptor.
  struct Guess {
    std::shared_ptr<OpenFile> file;
    int descriptor = -1;
    Guesses::By by = Guesses::By::reader;
    bool frozen = false;     // never changes
    uint64_t changes = 0;    // of `file`, when nobody could change it; else of no use
    bool unchanged = false;  // nobody could change it then
  };
  // `shared`: told what became of a clone of the guess; its answer counts.
  using Shared = std::function<Result<>(Result<>)>;
  Adoption(InodeNumber inode, std::string name, Guess guess, meta::Frontiers& frontiers, Counters& counters,
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

  // Nobody cuts while this is held: from before others can find the adoption until prepare() was called, or not.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  // `blob` (O_RDWR, empty) may go on as the guess does.
  void prepare(const std::unique_lock<std::mutex>& held, io::Fd blob, meta::BlobNumber number);

  // What it took of `data`, from its beginning; the rest, where there is no error, is the caller's to write.
  DataPath::Written write(std::span<const std::byte> data, off_t offset);
  // What the next WRITE of `size` bytes will be compared with is got at hand, while its writer fetches it. To be called
  // once a WRITE is answered; does nothing while another is served. `in_lockstep`: this thread will serve it.
  void look_ahead(size_t size, bool in_lockstep);
  // The blob ends at the frontier from now on, nothing is compared any more, and the guess is not used again.
  Result<> cut();
  // Cuts, has `sync` make the content durable, and gives the slot back: the file is like any other, durably after the
  // next fsync. `blob`: any descriptor of it.
  Result<> settle(int blob, const std::function<Result<>()>& sync);

  bool is_settled();
  // The file is gone for good, with its blob.
  void abandon();
  // The frontier, where the blob goes on behind it.
  std::optional<uint64_t> size() const;
  // Was more right than wrong? None: nothing was compared.
  std::optional<bool> was_right();

 private:
  static constexpr size_t kMostBlocks = 258;   // that a WRITE touches
  using Differing = std::bitset<kMostBlocks>;  // of the file's blocks that a WRITE touches

  Result<std::optional<size_t>> begin(std::span<const std::byte> data, uint64_t frontier);
  Result<bool> seems_right(std::span<const std::byte> data, uint64_t frontier);
  uint64_t next_sample(uint64_t offset) const;
  void expect_samples(uint64_t offset, size_t size) const;
  Result<std::optional<size_t>> start(std::span<const std::byte> data, uint64_t frontier);
  DataPath::Written compare(std::span<const std::byte> data, uint64_t frontier);
  void guess_unreadable(const Error& error);
  Result<> cut_locked();
  Result<> drop_clone();
  bool is_wrong() const { return mismatched_ > compared_ / 2; }
  bool guess_is_unchanged() const {
    return guess_.frozen || (guess_.unchanged && guess_.file->changes.load() == guess_.changes);
  }
  Result<Differing> compare_blocks(std::span<const std::byte> data, uint64_t offset);
  Result<bool> is_alike(std::span<const std::byte> data, uint64_t offset);
  Result<> put(std::span<const std::byte> data, uint64_t offset);
  DataPath::Written write_differing(std::span<const std::byte> data, const Differing& differing, uint64_t offset);

  const InodeNumber inode_;
  const std::string name_;
  const Guess guess_;
  meta::Frontiers& frontiers_;
  Counters& counters_;
  const Shared shared_;

  std::mutex mutex_;
  io::FileWindow window_;        // guarded by mutex_; of the guess
  io::Fd blob_;                  // guarded by mutex_; O_RDWR, from prepare() until it is cut
  meta::BlobNumber number_ = 0;  // guarded by mutex_; of the blob
  meta::Frontiers::Slot slot_;   // guarded by mutex_; until it is settled
  bool ending_ = false;          // guarded by mutex_; it was to be cut: nothing is compared any more
  uint64_t clone_size_ = 0;      // guarded by mutex_
  uint64_t compared_ = 0;        // guarded by mutex_
  uint64_t mismatched_ = 0;      // guarded by mutex_
  size_t sampled_ = kSampled;    // guarded by mutex_; one block of so many bytes is looked at before it starts
  uint64_t strange_ = 0;         // guarded by mutex_; bytes of the last WRITEs of which nothing was there
  io::ReadAhead read_ahead_;     // guarded by mutex_; of the guess, for its reader and compare()
  unsigned clones_ = 0;          // guarded by mutex_; how often it was started
  timespec written_{};           // guarded by mutex_; the last write
  std::atomic<uint64_t> frontier_{0};
  std::atomic<bool> adopting_{false};
};

}  // namespace ckptfs::fs
