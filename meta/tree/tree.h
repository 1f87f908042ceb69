// The tree of inodes: names, attributes, xattrs, and which blob a file is. The only way to change the index (through
// Index's one write path), and the only place that makes, truncates or dooms blobs.
//
// It knows nothing of FUSE. What it has to know about open files it asks through OpenFiles. Permissions are the
// kernel's business (default_permissions), except what nobody may do: write into frozen files and sealed steps (EPERM),
// remove or rename /steps and /views (EBUSY).
//
// Thread safety: every member may be called from any thread. Lock: mutex_ (order: before Index's own), held for the
// length of one change of the index, never across a sync, a clone, or a call into OpenFiles (meta/store/open_files.h).
// Lock: replacing() (order: before mutex_), while files get other blobs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "io/fd.h"
#include "io/mutex.h"
#include "meta/blobs/blobs.h"
#include "meta/blobs/space.h"
#include "meta/blobs/write_back.h"
#include "meta/index/index.h"
#include "meta/tree/file_health.h"
#include "meta/tree/gate.h"
#include "meta/tree/step_events.h"
#include "meta/types.h"

namespace ckptfs::meta {

struct Attributes {
  InodeRecord record;
  struct stat stat {};  // complete: st_ino, size, blocks and times exact as of now
};

struct NewNode {
  uint32_t mode = 0;  // with the kind; umask applied
  uint64_t rdev = 0;
  std::string target;   // symlink
  uint64_t writer = 0;  // regular file: which program makes it (InodeRecord::newest_writer)
};

// An empty directory, as mkdir with 0755 makes it now.
InodeRecord new_directory(uint32_t uid, uint32_t gid, InodeNumber parent);

// Only what is set changes.
struct AttributeChange {
  std::optional<uint32_t> mode, uid, gid;
  std::optional<timespec> atime, mtime;
};

// What a removal or an overwriting rename dropped.
struct Dropped {
  InodeNumber inode = 0;
  bool last_name = false;  // then reap() it after its last release and forget
};

class Tree {
 public:
  // The numbers that may be used next, and who is told of blobs whose last name is gone (by a committed batch).
  struct Start {
    InodeNumber next_inode = 0;
    BlobNumber next_blob = 0;
    uint64_t last_event = 0;
    std::function<void(BlobNumber)> doomed;
    // Told of names that came, once the change is made, with no lock held (meta/tree/step_detection.h).
    std::function<void(InodeNumber folder, const DirectoryEntry& entry)> entry_added;
    std::function<void(InodeNumber directory)> directory_renamed;
    std::unordered_set<InodeNumber> damaged;  // blob missing or short
    bool inspected = true;                    // false after a crash: see FileHealth
  };
  Tree(Index& index, const Blobs& blobs, Space& space, Start start);

  // --- reading
  Result<InodeRecord> inode(InodeNumber number) const;
  Result<Attributes> attributes(InodeNumber number) const;
  Result<InodeNumber> child(InodeNumber parent, const std::string& name) const;
  // EIO for a damaged file is left to open: its attributes still show.
  Result<Attributes> lookup(InodeNumber parent, const std::string& name) const;
  // Pinned steps, and the folders they lie in.
  Result<std::unordered_set<InodeNumber>> pinned_folders() const;
  // The step is about to be pinned, or was at the start.
  void note_pinned(InodeNumber step);
  // Without "." and "..". Sorted by name.
  Result<std::vector<DirectoryEntry>> list(InodeNumber directory) const;
  // The first `most` of them.
  Result<std::vector<DirectoryEntry>> list_first(InodeNumber directory, size_t most) const;
  // Path from the root ("/a/b"), for logs and messages; a regular file's is where it was made or last renamed. Neither
  // reads the names beside it. A path that is longer than any call takes begins with an inode.
  std::string path_of(InodeNumber number) const;
  // The last part of it. `record` is the inode's. ENOENT: the root, which has none.
  Result<std::string> own_name(InodeNumber number, const InodeRecord& record) const;
  // Walks "/a/b" or "a/b" from the root; symlinks are not followed.
  Result<InodeNumber> resolve(const std::string& path) const;

  // --- names. ctime and mtime of what POSIX says change are set here. EPERM in sealed steps.
  Result<Attributes> make(InodeNumber parent, const std::string& name, const NewNode& node, const Caller& caller);
  Result<Attributes> link(InodeNumber inode, InodeNumber parent, const std::string& name);
  Result<Dropped> unlink(InodeNumber parent, const std::string& name);
  Result<Dropped> remove_directory(InodeNumber parent, const std::string& name);
  // flags: 0 or RENAME_NOREPLACE; RENAME_EXCHANGE and others are EINVAL.
  Result<std::optional<Dropped>> rename(InodeNumber parent, const std::string& name, InodeNumber new_parent,
                                        const std::string& new_name, unsigned flags);
  // Moves all that a directory holds into another one, in one change. Files of these names that are there go.
  struct Moved {
    std::vector<DirectoryEntry> entries;
    std::vector<Dropped> replaced;
  };
  Result<Moved> move_all(InodeNumber from, InodeNumber to);
  // Takes the directory `expected` out of the tree with all that is in it, in one change: its name goes now, and what
  // it holds when purge() takes that. EPERM: a pinned step. ENOENT: the name is another's. `why`: for the event.
  Result<> take_out(InodeNumber parent, const std::string& name, InodeNumber expected, const std::string& why = {});
  // Takes up to `most` names, behind `after`, out of a directory that was taken out. Directories come out as whole as
  // that one did.
  struct Purged {
    std::vector<Dropped> files;
    std::vector<InodeNumber> directories;  // to be purged, too
    size_t missing = 0;                    // names that led to nothing: damage that fsck names while they are there
    std::string last;                      // the name to go on behind: what is deleted takes time to pass over
    bool done = false;                     // it is empty: dropped
  };
  Result<Purged> purge(InodeNumber directory, const std::string& after, size_t most);
  // After the last release and forget of an inode without a name: it goes from the index, and its blob, if no one else
  // names it, is doomed. Harmless for one that still has a name, and for a directory that is not purged yet.
  void reap(InodeNumber inode);

  // --- attributes
  Result<> change_attributes(InodeNumber inode, const AttributeChange& change);
  // Live files only (EPERM when frozen). Counts as a change since the last save.
  Result<> truncate(InodeNumber inode, uint64_t size);

  // --- xattrs as the user's own (user.*, trusted.*, security.*); the user.ckptfs.* ones: fs/ops/control_xattrs.h.
  Result<std::string> xattr(InodeNumber inode, const std::string& name) const;  // ENODATA
  Result<> set_xattr(InodeNumber inode, const std::string& name, const std::string& value, int flags);
  Result<std::vector<std::string>> list_xattrs(InodeNumber inode) const;
  Result<> remove_xattr(InodeNumber inode, const std::string& name);

  // --- data
  // The file's blob, opened with `flags` (access mode, O_DIRECT, O_SYNC, O_DSYNC are honoured; others dropped).
  // Damaged: EIO. Frozen and for writing: EPERM.
  Result<io::Fd> open_blob(InodeNumber inode, int flags) const;
  Result<io::Fd> open_blob(InodeNumber inode, const InodeRecord& record, int flags) const;
  // Held by who gives closed files other blobs, from the question whether somebody has them open until the change is
  // made. open_blob() without a record waits for it. So whoever counts a file as open first and then opens its blob
  // either is seen, or finds the new blob.
  io::Mutex& replacing() RETURN_CAPABILITY(replacing_) { return replacing_; }
  // To be called before a file may be written through any descriptor: EPERM when frozen or sealed, EIO when damaged,
  // ENOSPC if it is a swap file and the store has no room for the COW reserves of this file and of those that are open
  // for writing already (`others_reserve`: the sum of theirs). Forgets the blob it was saved as. Notes the writer
  // process of a rank folder.
  Result<> prepare_writing(InodeNumber inode, const Caller& caller, uint64_t others_reserve);
  // Keeps with the file which program writes it (program_id(), meta/steps/ledger.h).
  Result<> set_writer(InodeNumber inode, uint64_t writer);
  // ENOSPC if `bytes` allocated for this file would leave less free than the COW reserves of live swap files.
  Result<> check_room(InodeNumber inode, uint64_t bytes) const;
  // After the last close for writing: a swap file's COW reserve is counted again from its extents.
  void finished_writing(InodeNumber inode);
  // Likewise, at any other time.
  void recount_cow_reserve(InodeNumber inode);
  // From now on blocks of a file like `shared` are shared with it, more and more. So a swap file owes for all of them,
  // and is not counted again, until as many calls of end_sharing() have ended that.
  Result<> begin_sharing(InodeNumber inode, const struct stat& shared);
  void end_sharing(InodeNumber inode);
  // Must swap files be written through the daemon, so that every failure is seen? True while free space is below twice
  // the COW reserve.
  bool short_of_space() const;

  // What was written to the file becomes durable, through any descriptor of its blob; see meta/blobs/write_back.h.
  Result<> sync_file(InodeNumber inode, int blob);
  // Where the kernel has told of a write-back that failed other than to sync_file().
  void write_back_failed(InodeNumber inode, const InodeRecord& record, int blob, const Error& error);
  // Whether a write-back of it has failed: what is dirty of it was written back by a clone or by a sync of all. To be
  // asked once blocks of it were taken, since a clone does not tell what others have been told.
  Result<> check_write_back(InodeNumber inode, int blob);
  Result<> check_write_back(InodeNumber inode, const InodeRecord& record, int blob);
  // Writes these bytes of its blob to the disk, and waits for that; not for the disk's own cache.
  Result<> write_out(InodeNumber inode, int blob, off_t offset, off_t length);
  // EIO, naming the file, where it is no source: its write-back failed.
  Result<> refuse_suspect(InodeNumber inode, const InodeRecord& record) const;
  WriteBack& write_back() { return write_back_; }
  const WriteBack& write_back() const { return write_back_; }

  // --- durability. Makes every change made so far durable (data of new blobs' names first); concurrent calls share.
  Result<> sync();

  bool is_damaged(InodeNumber inode) const { return health_.is_damaged(inode); }
  std::vector<InodeNumber> damaged_files() const { return health_.damaged_files(); }
  bool is_inspected() const { return health_.is_inspected(); }
  FileHealth& health() { return health_; }
  const FileHealth& health() const { return health_; }
  // Files of which finished_writing could not read what it is about; each is logged.
  uint64_t release_errors() const { return release_errors_; }
  Gate& gate() { return gate_; }

  // --- for save, seal and the like, in meta/ only
  // A change under way: the tree's lock and the batch that will make it true. It can be moved, so clang's analysis does
  // not follow its lock: what needs the lock says so by Mutex::assert_held.
  class Change {
   public:
    Batch batch;
    // A blob whose last reference this change drops; told on once it is committed.
    std::vector<BlobNumber> doomed;

    InodeNumber allot_inode();
    BlobNumber allot_blobs(uint64_t count);
    // Tentative: the next start deletes them, unless a change publishes them before.
    std::vector<BlobNumber> promise_blobs(size_t count);
    // Puts a new directory or file below `parent` into the change; `parent` is updated, not yet put.
    void add_child(InodeNumber parent_number, InodeRecord& parent, const std::string& name, InodeNumber number,
                   const InodeRecord& child);
    Result<> drop_reference(BlobNumber blob);
    // The inode loses one of its names; a directory has one only. `record` is updated, and put.
    void drop_name(InodeNumber number, InodeRecord& record, const std::string& why = {});
    // Records what happens to a step of a series by this change. Nothing if the directory is none.
    void note_event(StepEvent::What what, InodeNumber directory, const InodeRecord& record,
                    const std::string& detail = {});
    void set_cow_reserve(InodeRecord& record, uint64_t bytes);
    // From the change that sets the COW reserves of these files for their clones, until the clones are made,
    // finished_writing() leaves the files alone. It also counts again what it counted meanwhile. One save or seal at a
    // time; see end_cloning().
    void begin_cloning(const std::unordered_set<InodeNumber>& files);

   private:
    friend class Tree;
    explicit Change(Tree& tree)
        : batch(tree.index_),
          tree_(tree),
          lock_(tree.mutex_),
          inode_limit_(tree.inode_limit_),
          blob_limit_(tree.blob_limit_) {}
    Tree& tree_;
    std::unique_lock<io::Mutex> lock_;
    InodeNumber inode_limit_;  // the tree's, once it is committed
    BlobNumber blob_limit_;
    std::vector<std::pair<uint64_t, uint64_t>> reserve_changes_;  // from, to
    std::vector<StepEvent> events_;                               // they get their numbers when it is committed
  };
  Change begin() { return Change(*this); }
  Result<> commit(Change change);
  // The clones are made, or will not be.
  void end_cloning();
  // While this stays what it was, nothing in the tree has changed.
  uint64_t version() {
    const io::MutexLock lock(mutex_);
    return index_.commits();
  }
  // The step that `inode` (a directory) lies in or is; 0: none.
  Result<InodeNumber> step_of(InodeNumber directory) const;
  // The file holds something else than its digests say: somebody wrote to it, and the index lost that in a crash.
  Result<> note_changed(InodeNumber inode);
  // Counts the COW reserve of each file that has one again, from its extents.
  Result<> recount_cow_reserves();
  // Before something is refused for want of space: gives back what was allocated ahead of writers.
  void reclaim_space() const;

 private:
  Result<InodeRecord> directory(InodeNumber number) const;
  Result<> refuse_sealed(InodeNumber directory, const InodeRecord& record, const std::string& what) const;
  Result<bool> begin_removal(Change& change, InodeNumber parent, const InodeRecord& record);
  Result<bool> try_recount_cow_reserve(InodeNumber number);
  Result<> try_prepare_writing(InodeNumber number, const Caller& caller, uint64_t others_reserve);
  Result<> forget_digests(Change& change, InodeNumber number, InodeRecord& record);
  Result<> replace_target(Change& change, const InodeRecord& moved, InodeNumber number, InodeRecord& target);
  Result<> relabel_swap(Change& change, InodeNumber number, InodeRecord& record, bool swap);
  Result<bool> relabel_one(Change& change, InodeNumber number, InodeRecord& record, bool swap);
  Result<bool> is_below(InodeNumber directory, InodeNumber ancestor) const;
  void fill_stat(InodeNumber number, Attributes& attributes) const;
  void note_writer(Change& change, InodeNumber folder, const Caller& caller);
  bool is_told_of(StepEvent::What what, InodeNumber directory, const InodeRecord& record,
                  const std::string& name) const;
  void note_maker(InodeRecord& folder, const Caller& caller);
  void note_replacing(InodeNumber old_number, const std::string& name, InodeNumber new_number,
                      const std::string& new_name);
  BlobNumber reserve_blob_number();

  Index& index_;
  const Blobs& blobs_;
  Space& space_;
  mutable WriteBack write_back_;  // an open for writing changes what it knows, and nothing else
  FileHealth health_;
  Gate gate_;
  const std::function<void(BlobNumber)> doomed_;
  const std::function<void(InodeNumber, const DirectoryEntry&)> entry_added_;
  const std::function<void(InodeNumber)> directory_renamed_;
  std::atomic<uint64_t> release_errors_{0};

  mutable io::Mutex replacing_;
  io::Mutex mutex_;  // one change of the tree at a time
  InodeNumber next_inode_ GUARDED_BY(mutex_);
  InodeNumber inode_limit_ GUARDED_BY(mutex_);  // recorded in the index
  BlobNumber next_blob_ GUARDED_BY(mutex_);
  BlobNumber blob_limit_ GUARDED_BY(mutex_);  // recorded in the index
  uint64_t last_event_ GUARDED_BY(mutex_);
  std::unordered_set<InodeNumber> cloning_ GUARDED_BY(mutex_);
  std::unordered_map<InodeNumber, unsigned> sharing_ GUARDED_BY(mutex_);
  uint64_t clonings_ GUARDED_BY(mutex_) = 0;                          // begun, and ended; and sharings that ended
  std::set<uint64_t> trainers_ GUARDED_BY(mutex_);                    // when those began that wrote live swap files
  mutable io::Mutex pinned_mutex_;                                    // leaf lock
  std::unordered_set<InodeNumber> pinned_ GUARDED_BY(pinned_mutex_);  // were once, and may be no more
};

}  // namespace ckptfs::meta
