// Whether what was written to blobs has reached the disk.
//
// When a write-back fails, the kernel reports the error once and takes the pages for clean: memory holds what was
// written, the disk something else, and the next fsync succeeds. So a blob whose write-back failed is *suspect*,
// durably, until its file is emptied or somebody accepts what the disk holds. A suspect blob is no source: a save, a
// seal, a clone, a copy that is adopted, a dedupe and a digest of it are refused, and each fsync of it fails. Its pages
// are dropped, so that readers see what the disk holds. An unmount fails, and names the files, where one became suspect
// during the mount and still is (check_all).
//
// The daemon does not see what is written through passthrough, so it asks where the kernel keeps the error:
//   - the blob's own, which fdatasync through any descriptor reports if nobody was told of it before;
//   - the file system's, which syncfs reports on a descriptor that was open before it happened. When no blob explains
//     such an error (its inode left memory, or another descriptor was told), every blob that was written since the last
//     clean sync becomes suspect. A blob explains the errors up to the first syncfs after its own, and none later. It
//     explains them for those blobs only that would tell of their own: whose inodes were kept in memory meanwhile (by
//     a descriptor here, as long as there are few), and which nobody syncs without the daemon.
// So every sync of a blob, and every syncfs, goes through here. All is synced at least every minute.
//
// The index becomes durable within a second, data half a minute later. Two habits of programs that do not sync rely on
// the order of the two, and XFS keeps it for them; so do we. A file that is renamed over another has its content on the
// disk before its new name is there: each sync of the index writes it back first. A file that was truncated and written
// anew begins to be written back when it is closed. (XFS goes by a flag of its own, XFS_ITRUNCATED, which the close of
// any descriptor clears, and the daemon truncates through another descriptor than the writer's.)
//
// Thread safety: all of it. Locks: syncing_ (held across syncfs and what follows from it, since the kernel tells only
// one of two callers; no request but save, seal and a search for space takes it), recording_, mutex_ (a leaf). Index
// calls before_sync and after_sync with none held.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "io/mutex.h"
#include "meta/blobs/blobs.h"
#include "meta/index/index.h"

namespace ckptfs::meta {

class WriteBack final : public SyncListener {
 public:
  using PathOf = std::function<std::string(InodeNumber)>;  // for the log
  using IsWriting = std::function<bool(InodeNumber)>;      // has somebody the file open for writing?
  WriteBack(Index& index, const Blobs& blobs, PathOf path_of);
  ~WriteBack() override;
  WriteBack(const WriteBack&) = delete;
  WriteBack& operator=(const WriteBack&) = delete;

  // What was suspect when the store was closed. To be called once, before anything else. `clean`: it was closed, so
  // nothing is in memory that was written before.
  Result<> load(bool clean);

  // Somebody may write to the file's blob, or could until now.
  void note_written(InodeNumber file, BlobNumber blob);
  // Somebody may sync the blob past the daemon: by msync of a mapping, or as O_SYNC does.
  void note_synced_elsewhere(BlobNumber blob);
  // It is about to be deleted: nothing here keeps its blocks.
  void forget(BlobNumber blob);
  // The file was truncated. Its writer may write it anew.
  void note_truncated(BlobNumber blob);
  // Nobody has the file open for writing any more.
  void note_closed(BlobNumber blob);
  // To be called before the change of the index by which the file takes another's place.
  void note_replacing(InodeNumber file, BlobNumber blob);
  // What was written to the blob becomes durable. EIO, or as the kernel said, from the first failure on.
  Result<> sync(InodeNumber file, BlobNumber blob, int fd);
  // The kernel has told of a failed write-back otherwise: once, so that no sync will.
  void failed(InodeNumber file, BlobNumber blob, int fd, const Error& error);
  // As sync(), of all blobs. An error names the files that became suspect by it.
  Result<> sync_all();

  // That no write-back of the blob failed before this call, whomever the kernel told. Nobody may write to it, and it
  // was synced. Syncs all, unless that was done since it was last written.
  Result<> make_sure(BlobNumber blob);

  // An error where the blob is suspect.
  Result<> check(BlobNumber blob) const;
  // An error that names the files that became suspect since load(), and still are.
  Result<> check_all();
  // The file is empty, or somebody takes what the disk holds for its content; a blob that is gone needs no call.
  Result<> trust(BlobNumber blob);
  size_t suspects() const { return count_.load(std::memory_order_acquire); }
  std::vector<std::pair<BlobNumber, SuspectRecord>> suspect_blobs() const;

  // Forgets which blobs were written before the last clean sync_all(), but for those that somebody can still write to.
  // Syncs all itself where that was not done for a minute, or these are very many. Records what is suspect where the
  // index failed to.
  void prune(const IsWriting& is_writing);

  void before_sync() override;
  void after_sync() override;

 private:
  struct Written {
    InodeNumber file = 0;
    uint64_t round = 0;      // the last sync_all() that had begun when it was noted
    bool truncated = false;  // and not closed by a writer since
    bool synced_elsewhere = false;
    io::Fd pin;  // O_PATH: keeps its inode in memory, and what that knows of errors; hidden from lease probes
  };
  struct Entry {
    BlobNumber blob = 0;
    InodeNumber file = 0;
    uint64_t round = 0;
    bool tells = false;  // of an error of its own, whatever happened meanwhile
  };
  struct Suspect {
    SuspectRecord record;
    bool is_new = true;        // since load()
    bool is_recorded = false;  // the index may have failed, too
    uint64_t failures = 1;     // so that trust() does not forget one that comes meanwhile
  };

  class OnlySync;

  Result<> sync_one(InodeNumber file, BlobNumber blob, int fd);
  std::vector<Entry> written_before(uint64_t round) const;
  // What an earlier daemon let be written shortly before this one began, too.
  std::vector<Entry> all_written() const REQUIRES(syncing_);
  io::Fd pin(BlobNumber blob) const;
  Result<> explain(const Error& error, std::unordered_set<BlobNumber> explaining) REQUIRES(syncing_);
  std::string names_of(const std::vector<InodeNumber>& files) const;
  // Durably, where it does not stand in a sync of the index.
  enum class Recorded { durably, by_this_sync };
  void suspect(InodeNumber file, BlobNumber blob, const Error& error, int fd, Recorded how = Recorded::durably);
  Result<> record(BlobNumber blob, Recorded how);
  void record_what_failed();
  void begin_write_back(BlobNumber blob) const;
  void flush_before_names(const std::unordered_map<BlobNumber, InodeNumber>& files, Recorded how);
  void forget_removed();
  bool is_time_to_sync() const;

  Index& index_;
  const Blobs& blobs_;
  const PathOf path_of_;

  io::Mutex syncing_;
  io::Mutex recording_;  // held across a commit: whether a blob is suspect is the same in the index and in memory
  mutable io::Mutex mutex_;
  io::CondVar synced_;
  std::unordered_set<BlobNumber> being_synced_ GUARDED_BY(mutex_);  // the kernel tells one of two callers only
  uint64_t round_ GUARDED_BY(mutex_) = 0;                           // sync_all()s that have begun
  std::chrono::steady_clock::time_point last_clean_ GUARDED_BY(mutex_) = std::chrono::steady_clock::now();
  uint64_t index_failures_ GUARDED_BY(syncing_) = 0;  // of the index, that the file system has told of
  uint64_t clean_ GUARDED_BY(mutex_) = 0;             // the last that succeeded
  // Until the first clean sync_all(): what changed since then may be dirty since before the start.
  std::optional<timespec> earlier_writes_since_ GUARDED_BY(syncing_);
  std::unordered_map<BlobNumber, Written> written_ GUARDED_BY(mutex_);  // since about the last clean sync_all()
  std::unordered_map<BlobNumber, Suspect> suspects_ GUARDED_BY(mutex_);
  std::unordered_set<BlobNumber> explaining_ GUARDED_BY(mutex_);              // failed since the last syncfs began
  std::unordered_map<BlobNumber, InodeNumber> replacing_ GUARDED_BY(mutex_);  // to be flushed by the next sync
  bool in_sync_ GUARDED_BY(mutex_) = false;                                   // the index is becoming durable
  std::atomic<size_t> count_{0};                                              // of suspects_
};

}  // namespace ckptfs::meta
