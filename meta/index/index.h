// The index: RocksDB, one column family a table, and the one write path into it. Only meta/ uses it.
//
// A change of the tree is one Batch. commit() applies it atomically; it survives a kill of the process at once and a
// power loss after the next sync().
//
// After a failed write RocksDB takes no change until it is resumed. The next change resumes it, whatever had failed.
// When there was no room, it gets the ballast first (meta/index/ballast.h). A change that makes no room is refused
// before it reaches RocksDB where there is neither room nor ballast for it, so that what is left is there for removals.
//
// Thread safety: all of it. Locks: sync_mutex_, resume_mutex_, both held without calling out except as said there.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/fd.h"
#include "io/mutex.h"
#include "meta/index/ballast.h"
#include "meta/index/codec.h"
#include "meta/index/index_log.h"
#include "meta/types.h"

namespace rocksdb {
class DB;
class ColumnFamilyHandle;
class WriteBatchWithIndex;
class Status;
}  // namespace rocksdb

namespace ckptfs::meta {

// The tables, in the order of their column families.
enum class Table : uint8_t { kv, inodes, entries, blobs, xattrs, steps, digests, maps };
inline constexpr size_t kTables = 8;

// Keys of the table `kv`.
inline constexpr const char* kFormatKey = "format";
inline constexpr const char* kCleanKey = "clean";
inline constexpr const char* kInodeLimitKey = "inode_limit";  // numbers from here on have never been used
inline constexpr const char* kBlobLimitKey = "blob_limit";
inline constexpr uint64_t kNumberBlock = 256;  // numbers allotted at a time
inline constexpr const char* kGenerationKey = "generation";
inline constexpr const char* kScrubbedKey = "scrubbed";  // the scrub goes on behind this blob

// Before the number of an event (meta/tree/step_events.h). The newest so many are kept.
inline constexpr const char* kEventPrefix = "event/";
inline constexpr uint64_t kKeptEvents = uint64_t{1} << 17;
// Before the number of a blob whose write-back failed.
inline constexpr const char* kSuspectPrefix = "suspect/";

// A blob is digested in chunks; so many digests stand in one value of the table `digests`.
inline constexpr uint64_t kDigestChunk = uint64_t{1} << 20;
inline constexpr uint64_t kDigestGroup = 256;
constexpr uint64_t digest_chunks(uint64_t length) { return (length + kDigestChunk - 1) / kDigestChunk; }
constexpr uint64_t digest_groups(uint64_t length) { return (digest_chunks(length) + kDigestGroup - 1) / kDigestGroup; }

// What to do when the index is lost: for error messages.
std::string lost_index_advice();

class Index;

// Changes that become true together. Not thread-safe; used once. What it changes twice must be read through it: the
// index does not know the first change yet.
class Batch {
 public:
  explicit Batch(Index& index);
  ~Batch();
  Batch(Batch&&) noexcept;

  void put(InodeNumber number, const InodeRecord& record);
  void erase_inode(InodeNumber number);
  void put_entry(InodeNumber parent, const std::string& name, const EntryRecord& entry);
  void erase_entry(InodeNumber parent, const std::string& name);
  void put_blob(BlobNumber number, const BlobRecord& record);
  // With its digests, of which `digest` is the record's, and with the mark that its write-back failed.
  void erase_blob(BlobNumber number, const BlobDigest& digest);
  // One group of a blob's digests (meta/care/digests.h).
  void put_digests(BlobNumber blob, uint64_t group, std::span<const io::Digest> digests);
  void erase_digests(BlobNumber blob, uint64_t first_group, uint64_t groups);  // from `first_group` on
  void put_xattr(InodeNumber inode, const std::string& name, const std::string& value);
  void erase_xattr(InodeNumber inode, const std::string& name);
  void put_step(InodeNumber inode, const StepRecord& record);
  void erase_step(InodeNumber inode);
  void put_map(InodeNumber step, const KeptMap& map);
  void erase_map(InodeNumber step);
  void put_number(const char* key, uint64_t value);
  // Must be recorded on a full store, too. What removes names, inodes or blobs is so by itself.
  void allow_on_full_store() { allowed_on_full_store_ = true; }
  void put_suspect(BlobNumber blob, const SuspectRecord& record);
  void erase_suspect(BlobNumber blob);
  void put_event(uint64_t number, const std::string& event);  // takes the place of the oldest one
  bool empty() const;

  // As this batch leaves it. ENOENT where there is none.
  Result<InodeRecord> inode(InodeNumber number) const;
  Result<BlobRecord> blob(BlobNumber number) const;

 private:
  friend class Index;
  Result<std::string> get(Table table, const std::string& key) const;
  Index& index_;
  std::unique_ptr<rocksdb::WriteBatchWithIndex> batch_;
  bool allowed_on_full_store_ = false;
};

// Is told of each sync, by the thread that makes it. May commit to the index; must not sync it.
class SyncListener {
 public:
  virtual ~SyncListener() = default;
  virtual void before_sync() = 0;
  virtual void after_sync() = 0;
};

class Index {
 public:
  struct Options {
    std::string folder;        // STORE/meta
    std::string durable_file;  // STORE/durable: the sequence number up to which the index was durable, after each sync
    int blobs_fd = -1;         // fsynced before names when new blobs were made
    bool create = false;
    bool read_only = false;  // fsck; no ballast
  };
  // EIO, in words, where the index is damaged, or older than what was durable (a lost or truncated log).
  static Result<std::unique_ptr<Index>> open(const Options& options);
  ~Index();

  // ENOENT where there is none.
  Result<InodeRecord> inode(InodeNumber number) const;
  Result<EntryRecord> entry(InodeNumber parent, const std::string& name) const;
  // Where there may be none: an index that cannot be read is an error, and no free name.
  Result<std::optional<EntryRecord>> find_entry(InodeNumber parent, const std::string& name) const;
  Result<BlobRecord> blob(BlobNumber number) const;
  Result<std::string> xattr(InodeNumber inode, const std::string& name) const;
  Result<StepRecord> step(InodeNumber inode) const;
  Result<std::optional<StepRecord>> find_step(InodeNumber inode) const;  // likewise
  Result<KeptMap> map(InodeNumber step) const;
  Result<uint64_t> number(const char* key) const;
  Result<uint64_t> number_or_zero(const char* key) const;  // 0 where there is none
  // Raised at each start and each clean end, here and then in blobs/ (meta/blobs/blobs.h): an index that is behind
  // blobs/ is an older copy. 0 where it never was.
  Result<uint64_t> generation() const;
  Result<std::vector<io::Digest>> digests(BlobNumber blob, uint64_t group) const;

  Result<std::vector<DirectoryEntry>> entries(InodeNumber parent) const;
  // Up to `most`, those behind the name `after`.
  Result<std::vector<DirectoryEntry>> entries_after(InodeNumber parent, const std::string& after, size_t most) const;
  Result<bool> has_entries(InodeNumber parent) const;
  Result<std::vector<std::string>> xattr_names(InodeNumber inode) const;

  // Visit a whole table in the order of its keys, as of the moment of the call; an error from `visit` ends it.
  Result<> for_each_inode(const std::function<Result<>(InodeNumber, const InodeRecord&)>& visit) const;
  Result<> for_each_blob(const std::function<Result<>(BlobNumber, const BlobRecord&)>& visit) const;
  Result<> for_each_step(const std::function<Result<>(InodeNumber, const StepRecord&)>& visit) const;
  Result<> for_each_entry(const std::function<Result<>(InodeNumber, const DirectoryEntry&)>& visit) const;

  // Up to `most` events, those behind the number `after`, in order.
  Result<std::vector<std::pair<uint64_t, std::string>>> events_after(uint64_t after, size_t most) const;
  Result<uint64_t> last_event() const;  // its number; 0: there was none

  Result<> for_each_suspect(const std::function<Result<>(BlobNumber, const SuspectRecord&)>& visit) const;

  // The one write path.
  Result<> commit(Batch batch);
  // Makes all that was committed before the call durable: fsync of blobs/ where it has new files, then of the log.
  // Concurrent calls share one.
  Result<> sync();
  // To be called before other threads use the index; null: nobody. It must outlive them.
  void set_sync_listener(SyncListener* listener) { sync_listener_ = listener; }
  // How many batches have been committed.
  uint64_t commits() const { return commits_.load(std::memory_order_acquire); }
  // ENOSPC where only what makes room is recorded.
  Result<> refuse_when_full() const;
  // How often the disk refused what the index wrote.
  uint64_t failures() const { return failures_.load(std::memory_order_acquire); }
  // A file was made or removed in blobs/ since the last sync.
  void note_blobs_changed() { blobs_changed_.store(true, std::memory_order_release); }

  Ballast& ballast() { return ballast_; }

 private:
  friend class Batch;
  explicit Index(const Options& options);
  Result<> open_database();
  Result<> check_durable() const;
  Result<> sync_now() EXCLUDES(sync_mutex_);
  rocksdb::Status resume_and(const std::function<rocksdb::Status()>& attempt, bool with_last_ballast);
  Result<std::string> get(Table table, const std::string& key) const;
  Result<> scan(Table table, const std::string& prefix,
                const std::function<Result<>(std::string_view, std::string_view)>& visit) const;
  rocksdb::ColumnFamilyHandle* handle(Table table) const { return handles_[static_cast<size_t>(table)]; }

  const Options options_;
  IndexLogs logs_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
  io::Fd durable_fd_;
  SyncListener* sync_listener_ = nullptr;

  mutable io::Mutex sync_mutex_;  // not held while syncing
  io::CondVar sync_done_;
  bool syncing_ GUARDED_BY(sync_mutex_) = false;
  uint64_t synced_ GUARDED_BY(sync_mutex_) = 0;  // value of commits_ up to which all is durable
  std::atomic<uint64_t> commits_{0};
  std::atomic<uint64_t> failures_{0};
  std::atomic<uint64_t> recorded_{0};  // sequence number behind the last commit: RocksDB counts failed ones, too
  std::atomic<bool> blobs_changed_{false};

  io::Mutex resume_mutex_;  // held while RocksDB is resumed, for which it writes; all who come meanwhile need that, too
  Ballast ballast_;
};

}  // namespace ckptfs::meta
