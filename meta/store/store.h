// A store: the folder that holds everything (meta/, blobs/, config.json, lock, durable), opened by one daemon.
//
// What is durable when:
//   - A change of the tree is one Batch. It survives a kill of the daemon when Index::commit returns, and a power loss
//     after Index::sync.
//   - Data before names: Index::sync fsyncs blobs/ before the log when new blobs were made; a save syncs its clones
//     before it publishes the step.
//   - The log is synced by fsync, fsyncdir, save, seal, removal and unmount, and once a second (meta/blobs/reaper.h).
//   - A blob is deleted only after the batch that doomed it is durable. Its record goes after the deletion is durable.
//   - What a save promised as tentative, and the empty blobs that are made ahead of it (meta/tree/spare_blobs.h), a
//   start
//     deletes.
//   - The file `durable` holds the sequence number that was durable after each sync. The log is read up to its first
//     hole, as a power loss may leave one. An index that ends before `durable` has lost part of its log, and the mount
//     is refused. So is a missing or empty meta/ beside blobs/ with content: a lost index must never delete
//     checkpoints.
//   - Each start and each clean end raises a *generation*, in the index and then in an xattr of blobs/. An index that
//     is behind blobs/ is an older copy. What it calls tentative may have been published since, so that is kept,
//     without a name.
//   - After a crash every live file counts as changed since its last save, a name whose blob is missing is damaged (EIO
//     on open, in `status`), and a nameless blob with content stays (meta/store/recovery.h). The start reads the index
//     and the names in blobs/. It looks at no file. The rest is done behind the mount, or at once where there are
//     few files (meta/store/inspection.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/mutex.h"
#include "io/sharing_probe.h"
#include "meta/blobs/blobs.h"
#include "meta/blobs/space.h"
#include "meta/index/index.h"
#include "meta/store/open_files.h"
#include "meta/store/recovery.h"
#include "meta/tree/spare_blobs.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

class Accounting;

struct StoreOptions {
  std::string folder;      // the store itself (for an image: STORE/fs)
  uint32_t owner_uid = 0;  // of the root and /steps when the store is made
  uint32_t owner_gid = 0;
  bool create = true;      // make it where the folder is empty or missing
  std::string image = {};  // the file that the folder's file system is in, where that is ours; empty: none
  // After a crash so many inodes are inspected before open() returns; more are left to inspect().
  uint64_t inspected_at_once = 10000;
};

// The id in the folder's config.json. ENOENT where there is none; EPROTONOSUPPORT, naming both, for another format
// version.
Result<std::string> read_store_id(const std::string& folder);

class Store {
 public:
  // Takes the lock (EBUSY: another daemon has it), checks format version and capability (EOPNOTSUPP without reflink,
  // naming the way out), refuses a missing, empty or truncated index beside blobs with content, recovers.
  static Result<std::unique_ptr<Store>> open(const StoreOptions& options);
  // What open() left of the inspection after a crash (meta/store/inspection.h); ends early when `go_on` says false.
  Result<> inspect(const std::function<bool()>& go_on);
  // Unmount: everything durable, clean mark written. The destructor without it leaves the store as a crash would.
  Result<> close();
  ~Store();

  Tree& tree() const;
  Index& index() const;
  const std::string& folder() const;
  const std::string& id() const;  // from config.json, 16 hex digits
  const Blobs& blobs() const;
  SpareBlobs& spares() const;
  Accounting& accounting() const;
  const RecoveryReport& recovery() const;
  // Directories that were taken out of the tree before this start, and are not empty (Tree::purge).
  const std::vector<InodeNumber>& unpurged() const;
  // All zeros where the file system does not answer (logged).
  SpaceReport space() const;

  // The mount's open files; set once before the first request. Without it nothing counts as open.
  void set_open_files(OpenFiles* open_files);
  OpenFiles& open_files() const;

  // One save at a time.
  io::Mutex& save_mutex();

  struct Internals;

 private:
  explicit Store(std::unique_ptr<Internals> internals);
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::meta
