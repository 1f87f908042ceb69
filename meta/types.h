// The words of the store (docs/architecture.md, docs/words.md) as plain values. No behaviour, no locks.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include <cstdint>
#include <string>

#include "io/digest.h"

namespace ckptfs::meta {

// Never changes, never comes back. 1 is the root.
using InodeNumber = uint64_t;
inline constexpr InodeNumber kRootInode = 1;
// Inodes of views (fs/views) start here; the index never allots one that high.
inline constexpr InodeNumber kFirstVirtualInode = uint64_t{1} << 62;

// One backing file in blobs/. 0 is none.
using BlobNumber = uint64_t;

// What is true of an inode beyond its mode.
enum InodeFlag : uint32_t {
  kSeries = 1,      // directory: its children may be steps
  kStep = 2,        // directory: saved, committed by ranks, thinned, sealed or pinned; has a record in `steps`
  kSealed = 4,      // in a sealed step (the step's own directory included)
  kFrozen = 8,      // regular file: names a frozen blob
  kSwap = 16,       // in (or itself) a zero_stage_N folder: what saves take, and what has a COW reserve
  kRecovered = 32,  // regular file, in memory only: a writer may have survived the last daemon
  kDigested = 64,   // file: not opened for writing, while it was live, since its digests were taken or began to be
  kPushed = 128,    // directory: a series with a remote, where a step's name and any content make a step
  kDeclared = 256,  // directory: a series of which somebody said what its steps are called (declared_steps())
};

struct InodeRecord {
  uint32_t mode = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t nlink = 0;
  uint64_t rdev = 0;
  uint32_t flags = 0;
  // A directory's parent; a regular file's directory when it was made or last renamed (a hint: hard links have more).
  InodeNumber parent = 0;
  BlobNumber blob = 0;
  // Live swap file: the frozen blob it was last saved as, if nothing has changed it since; else 0. Only a save sets it.
  // What clears it: an open for writing and a truncate (meta/tree/tree_data.cc), a move into or out of a zero_stage_N
  // (meta/tree/tree_names.cc), a seal (meta/steps/seal.cc), and any start after a crash (meta/store/recovery.cc). A
  // writer that is there already shows at the save only, which then clones the file and leaves this at 0
  // (meta/steps/save.cc).
  BlobNumber saved_blob = 0;
  // Live swap file: bytes that overwriting all of it would newly allocate (meta/blobs/space.h).
  uint64_t cow_reserve = 0;
  // Valid for all but live regular files, whose size, blocks, atime and mtime are those of the blob.
  uint64_t size = 0;
  uint64_t blocks = 0;  // of 512 bytes
  timespec atime{};
  timespec mtime{};
  timespec ctime{};  // live regular files: the later of this and the blob's
  // Rank folder of swap files: when the newest process that made a file in it, or opened one for writing, began
  // (CLOCK_REALTIME ns). In a step: of the live one that a save took; of the process that made files in it, if it
  // writes live ones, too; else 0. Two of one run have the same. Regular file of a step: which program wrote it
  // last (program_id(), meta/steps/ledger.h); 0: nobody knows.
  uint64_t newest_writer = 0;
  std::string target;  // symlink
  // Anything else: its name in `parent`, for paths. A hint, as `parent` is: the entries of `parent` tell whether it is
  // so. Empty in what an older version made.
  std::string name;

  bool is_dir() const { return S_ISDIR(mode); }
  bool is_regular() const { return S_ISREG(mode); }
  bool is_live_file() const { return is_regular() && (flags & kFrozen) == 0; }
};

enum class BlobState : uint8_t {
  live = 1,       // one inode, written in place
  frozen = 2,     // never written again; counted references
  tentative = 3,  // promised to a save, seal or thinning that is not published: deleted at the next start
  doomed = 4,     // its last name is durably gone, or will be at the next sync: the reaper deletes it
};

// What is known of a blob's content (meta/care/digests.h).
enum class DigestState : uint8_t {
  none = 0,
  taken = 1,    // the blob held what its digests say
  changed = 2,  // its file has been opened for writing since
  damaged = 3,  // nobody wrote to it, and it no longer holds what its digests say
};

struct BlobDigest {
  DigestState state = DigestState::none;
  uint64_t length = 0;  // of what was digested
  timespec mtime{};     // of the blob then
  io::Digest root{};    // of all chunks' digests: equal roots, equal content
};

struct BlobRecord {
  BlobState state = BlobState::live;
  uint64_t references = 1;
  uint64_t length = 0;  // frozen only
  BlobDigest digest{};
};

// What `save`, `seal` and `pin` know of a step; keyed by the step directory's inode.
struct StepRecord {
  InodeNumber source = 0;  // the zero_stage_N folder a save took; 0: none did
  timespec saved{};        // when the save was published
  bool sealed = false;
  bool pinned = false;
  bool being_removed = false;
  std::string stale;    // names of perhaps stale files, one a line
  uint64_t number = 0;  // where the name carries none: in the order in which the steps of its series were made
};

// Who asks.
struct Caller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  pid_t pid = 0;  // a thread's, as FUSE reports it; 0: the daemon itself
};

struct DirectoryEntry {
  std::string name;
  InodeNumber inode = 0;
  uint32_t type = 0;  // S_IFMT bits
};

}  // namespace ckptfs::meta
