// The node table (OpenFileTable): for each inode that the kernel remembers a *node* with its count of lookups and its
// name, and for each that is open an OpenFile with what its opens share. Which opens are served by the daemon, and why:
// fs/open/open_modes.h.
//
// How opens, closes and forgets meet
// ----------------------------------
// *Lookup counts.* Every entry in a reply to the kernel adds one to its inode's lookup count, FORGET takes them back.
// An inode that lost its last name (`dropped`) is reaped, that is, leaves the index, when the kernel has forgotten it
// *and* nothing has it open. RELEASE and FORGET of one file are two messages that two threads may process in either
// order, so whichever comes last reaps. Inode numbers never come back, so a late message can only hit nothing. What was
// taken out of the tree with the directory above it (fs/steps/removals.h) the kernel would remember for good, since no
// UNLINK told it: that is reaped as soon as nothing has it open.
//
// *Opens.* An inode's first open makes its OpenFile, the last close takes it out of the table; an open that comes
// between makes a new one. All opens of an OpenFile share one read-only descriptor of the blob and, under passthrough,
// one backing id made from it. Both rules are the kernel's: it answers EIO for a passthrough open with a second backing
// id beside a first, and for a plain direct open beside a passthrough one. So:
//   - it is decided once for each OpenFile whether it has a backing id, for as long as anything has the file open;
//   - an open that the daemon serves all the same carries the backing id *and* direct_io, which disturbs no one;
//   - an inode's blob never changes while it has an OpenFile (meta's rule, asked through open_at_all).
// The shared descriptor is read-only on purpose: as long as no open writes through the daemon, the daemon has nothing
// open for writing, and a lease probe (io/lease.h) tells truly whether someone else has.
//
// *Making the backing id* needs an ioctl, which no lock is held across. Two first opens may so both make one; the first
// to install it wins and the other closes its own, which no reply has named. A file whose backing id could not be made
// is served by the daemon until its last close, for the other opener too.
//
// *Closing.* The kernel ends its own passthrough state of a file before it sends RELEASE, so at the count of 0 the
// backing id is no longer used, and an OPEN that overtakes the RELEASE only finds the count at 1 instead. The
// descriptor and the id are closed by whoever counted down to 0, after the lock.
//
// *Write-back errors.* The descriptors of a file share one error state in the kernel, which tells it once. So it is
// kept here as a sequence number with the last errno: each handle remembers what it has seen, and its fsync reports
// what is new to it (as the kernel's errseq_t).
//
// Lock: mutex_ guards both maps and the fields of OpenFile marked so. It is a leaf: nothing is called with it held, no
// system call is made, no reply sent. The lock order of the daemon: docs/architecture.md, "The rules".
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "io/fd.h"
#include "io/mutex.h"
#include "io/result.h"
#include "meta/types.h"

namespace ckptfs::fs {

using meta::InodeNumber;

// A sticky error that each reader sees once. Any thread.
class ErrorSequence {
 public:
  // What a new handle has seen: everything so far.
  uint64_t now() const { return state_.load(std::memory_order_acquire); }
  void record(int errno_value);
  // The errno recorded since `seen` was last brought up to date, or 0; brings it up to date.
  int check(std::atomic<uint64_t>& seen) const;

 private:
  std::atomic<uint64_t> state_{0};  // sequence number << 16 | errno
};

struct OpenFile;

class OpenFileTable {
 public:
  // What the table needs from outside; called with no lock held, from any thread.
  struct Environment {
    std::function<Result<io::Fd>(InodeNumber)> open_blob;     // O_RDONLY
    std::function<Result<int>(int descriptor)> open_backing;  // 0: this mount has no passthrough
    std::function<void(int backing_id)> close_backing;
    std::function<void(InodeNumber)> reap;             // its last name, open and lookup are gone
    std::function<void(InodeNumber)> about_to_change;  // or to go
  };
  explicit OpenFileTable(Environment environment) : environment_(std::move(environment)) {}

  // --- lookup counts and names
  void add_lookup(InodeNumber inode, const std::string& name);
  void forget(InodeNumber inode, uint64_t count);
  // The name by which the kernel learned of the inode last; empty where it remembers none.
  std::string name_of(InodeNumber inode) const;
  // The inode has lost its last name.
  void dropped(InodeNumber inode);
  // Likewise, and the kernel was not told: it may remember the inode for good, and finds no way to it. So what counts
  // is only whether it is open.
  void taken_out(InodeNumber inode);

  // --- opens. Counts one; `writing` also as a writer. first_writer: nobody wrote before. remembered: by the kernel.
  // It learns of a file only when the CREATE that makes it is answered: it locks the folder until then.
  struct OpenCount {
    std::shared_ptr<OpenFile> file;
    bool first_writer = false;
    bool remembered = false;
  };
  OpenCount begin(InodeNumber inode, bool writing);
  // The file's descriptor and mode; made at its first open. Valid until the end() of the open that asks.
  struct Backing {
    int descriptor = -1;
    int backing_id = 0;
  };
  Result<Backing> backing(OpenFile& file);
  // Has nobody else the file open?
  bool is_only_open(const OpenFile& file) const;
  bool has_writers(const OpenFile& file) const;
  // What is known of a file's writers, whether it is open or not.
  struct Writers {
    uint64_t changed = 0;      // another number after each begin and end of writing, and each new size
    bool any = false;          // open for writing, as far as the kernel has told: a close it tells of a little later
    bool closing = false;      // one that does may have ended this moment
    bool past_daemon = false;  // all its opens have a backing id: a lease probe of the blob tells who writes now
  };
  Writers writers_of(InodeNumber inode) const;
  // Somebody is about to change the size of a file without opening it.
  void changes(InodeNumber inode);
  // Blocks are allocated for an open file, which are to be its own.
  void allocates(InodeNumber inode);
  // A descriptor that writes through the daemon is being closed. If it is the last, end() follows at once.
  void closing(OpenFile& file);
  // The files that are open, or were closed last at or after `since`.
  std::unordered_set<InodeNumber> used_since(std::chrono::steady_clock::time_point since) const;
  // Forgets which files were closed last before then.
  void forget_closed_before(std::chrono::steady_clock::time_point time);
  // For every handle that is open now.
  void record_error(InodeNumber inode, int errno_value);
  // Counts one down; true: it was the last for writing. The caller has closed its own descriptors of the file before.
  bool end(const std::shared_ptr<OpenFile>& file, bool writing);

  bool open_for_writing(InodeNumber inode) const;
  bool open_at_all(InodeNumber inode) const;
  // Calls `work`, with no lock held, for each of `inodes` that is open for writing, until one fails. The file counts as
  // open meanwhile, so that its descriptor stays.
  Result<> with_writers(const std::vector<InodeNumber>& inodes,
                        const std::function<Result<>(OpenFile&, int descriptor)>& work);

  // --- for the whole mount
  bool writing() const;
  std::vector<InodeNumber> open_for_writing() const;
  size_t open_count() const;
  size_t remembered_count() const;
  // After the session has ended: forgets every lookup and open; the inodes to reap, and those that were still open for
  // writing (RELEASEs that the kernel did not send any more).
  struct Leftover {
    std::vector<InodeNumber> reap;
    std::vector<InodeNumber> writing;
  };
  Leftover clear();

 private:
  friend struct OpenFile;                                    // names mutex_
  static constexpr size_t kMostChanged = 65536;              // then all files count as changed, and are forgotten
  static constexpr std::chrono::milliseconds kClosing{500};  // beyond it, other descriptors are open

  struct Node {
    uint64_t lookups = 0;
    bool dropped = false;
    bool taken_out = false;
    std::string name;
  };

  // Takes the node out if the kernel has forgotten it, or cannot find it, and nothing has it open; true: it is to be
  // reaped.
  bool take_if_gone(InodeNumber inode) REQUIRES(mutex_);
  void note_change(InodeNumber inode) REQUIRES(mutex_);
  void lost_last_name(InodeNumber inode, bool taken_out) EXCLUDES(mutex_);

  const Environment environment_;
  mutable io::Mutex mutex_;
  std::unordered_map<InodeNumber, Node> nodes_ GUARDED_BY(mutex_);
  std::unordered_map<InodeNumber, std::shared_ptr<OpenFile>> open_ GUARDED_BY(mutex_);
  std::unordered_map<InodeNumber, std::chrono::steady_clock::time_point> closed_ GUARDED_BY(mutex_);  // when, last
  uint64_t last_change_ GUARDED_BY(mutex_) = 0;                           // how many there were, of all files
  uint64_t oldest_change_ GUARDED_BY(mutex_) = 0;                         // of files that are not in changed_
  std::unordered_map<InodeNumber, uint64_t> changed_ GUARDED_BY(mutex_);  // the last change of each, of some
};

// What all opens of one inode share. Owned by the table and by the handles; made and counted by OpenFileTable only.
struct OpenFile {
  explicit OpenFile(InodeNumber number) : inode(number) {}

  const InodeNumber inode;
  ErrorSequence errors;
  // Opens that the daemon serves and that may be read by splice (sendfile): the kernel does that through its page
  // cache. It drops what it has there of a write that the daemon serves, not of one that goes past it.
  std::atomic<unsigned> spliced{0};
  std::atomic<bool> allocated{false};  // by fallocate: its blocks are not to be exchanged for shared ones
  std::atomic<uint64_t> changes{0};    // opens for writing and new sizes so far: while it stays, so does the content

  unsigned opens GUARDED_BY(&OpenFileTable::mutex_) = 0;
  unsigned writers GUARDED_BY(&OpenFileTable::mutex_) = 0;  // of `opens`, those for writing
  io::Fd descriptor GUARDED_BY(&OpenFileTable::mutex_);   // O_RDONLY, unchanged from its installation to the last close
  int backing_id GUARDED_BY(&OpenFileTable::mutex_) = 0;  // likewise; 0: direct
  std::optional<std::chrono::steady_clock::time_point> closing GUARDED_BY(&OpenFileTable::mutex_);  // since when
};

}  // namespace ckptfs::fs
