#include "meta/index/index.h"

#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/write_batch_with_index.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <span>

#include "io/fault.h"
#include "io/log.h"
#include "meta/index/index_messages.h"

namespace ckptfs::meta {
namespace {

constexpr std::array<const char*, kTables> kTableNames = {"default", "inodes", "entries", "blobs",
                                                          "xattrs",  "steps",  "digests", "maps"};
// The room that the index needs for a while: for a new log, and for tables of what the old log held.
constexpr uint64_t kRoomForChanges = uint64_t{16} << 20;

// RocksDB calls most I/O errors fatal, and then refuses changes until the next open. But an error can pass (no
// descriptor, no memory, a disk that was away). So each is turned into one that Resume ends. Resume writes all that is
// in memory into new files, so that nothing depends any more on the file that failed.
class PassingErrors : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* status) override {
    using Severity = rocksdb::Status::Severity;
    if (status->IsIOError() && status->severity() > Severity::kHardError) {
      *status = rocksdb::Status(*status, Severity::kHardError);
    }
  }
  // Index calls Resume. RocksDB would answer Busy to that while it tries by itself.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* by_itself) override {
    *by_itself = false;
  }
};

Error from_status(const rocksdb::Status& status) {
  if (status.IsNotFound()) return Error(ENOENT);
  if (status.IsNoSpace()) return Error(ENOSPC, "the index: " + status.ToString());
  return Error(EIO, "the index: " + status.ToString());
}

template <class Decode>
auto decoded(const Result<std::string>& value, const Decode& decode) -> decltype(decode("")) {
  return value ? decode(value.value()) : value.error();
}

rocksdb::Options database_options(bool create, rocksdb::Env* env) {
  rocksdb::Options o;
  o.create_if_missing = create;
  o.create_missing_column_families = create;
  o.error_if_exists = create;
  // After a power loss the end of the log may have holes: its pages reach the disk in any order. The log is read up to
  // the first hole; check_durable() tells whether anything that was durable lies behind it.
  o.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  o.env = env;
  o.max_open_files = 256;
  o.listeners.push_back(std::make_shared<PassingErrors>());
  o.max_bgerror_resume_count = 0;  // see PassingErrors
  o.max_background_jobs = 2;
  o.max_total_wal_size = 4 << 20;  // what a mount reads again, and what the log adds to the compressed tables on disk
  o.max_manifest_file_size = 16 << 20;
  o.info_log = index_messages();
  return o;
}

rocksdb::ColumnFamilyOptions table_options(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions o;
  o.write_buffer_size = 4 << 20;
  o.max_write_buffer_number = 4;
  o.compression = rocksdb::kLZ4Compression;
  o.bottommost_compression = rocksdb::kZSTD;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.cache_index_and_filter_blocks = true;
  // Filters are partitioned, so that the cache can hold them. A table of half a million inodes has a filter of 600 KiB.
  // As one block each look-up would read it and throw it away again.
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.partition_filters = true;
  table.pin_top_level_index_and_filter = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  o.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return o;
}

}  // namespace

std::string lost_index_advice() {
  return "nothing was changed; keep blobs/, which has all content; with a copy of meta/ in its place the files are "
         "those "
         "of the copy, and what is newer stays in blobs/ until `ckptfs fsck --remove-orphans`";
}

Batch::Batch(Index& index)
    : index_(index),
      batch_(std::make_unique<rocksdb::WriteBatchWithIndex>(rocksdb::BytewiseComparator(), 0, /*overwrite_key=*/true)) {
}
Batch::~Batch() = default;
Batch::Batch(Batch&&) noexcept = default;

void Batch::put(InodeNumber number, const InodeRecord& record) {
  batch_->Put(index_.handle(Table::inodes), number_key(number), encode(record));
}
void Batch::erase_inode(InodeNumber number) {
  allow_on_full_store();
  batch_->Delete(index_.handle(Table::inodes), number_key(number));
}
void Batch::put_entry(InodeNumber parent, const std::string& name, const EntryRecord& entry) {
  batch_->Put(index_.handle(Table::entries), name_key(parent, name), encode(entry));
}
void Batch::erase_entry(InodeNumber parent, const std::string& name) {
  allow_on_full_store();
  batch_->Delete(index_.handle(Table::entries), name_key(parent, name));
}
void Batch::put_blob(BlobNumber number, const BlobRecord& record) {
  if (record.state == BlobState::doomed) allow_on_full_store();
  batch_->Put(index_.handle(Table::blobs), number_key(number), encode(record));
}
void Batch::erase_blob(BlobNumber number, const BlobDigest& digest) {
  allow_on_full_store();
  erase_suspect(number);
  batch_->Delete(index_.handle(Table::blobs), number_key(number));
  if (digest.state != DigestState::none) erase_digests(number, 0, digest_groups(digest.length));
}
void Batch::put_digests(BlobNumber blob, uint64_t group, std::span<const io::Digest> digests) {
  batch_->Put(index_.handle(Table::digests), digests_key(blob, group), encode(digests));
}
void Batch::erase_digests(BlobNumber blob, uint64_t first_group, uint64_t groups) {
  for (uint64_t group = first_group; group < groups; ++group) {
    batch_->Delete(index_.handle(Table::digests), digests_key(blob, group));
  }
}
void Batch::put_xattr(InodeNumber inode, const std::string& name, const std::string& value) {
  batch_->Put(index_.handle(Table::xattrs), name_key(inode, name), value);
}
void Batch::erase_xattr(InodeNumber inode, const std::string& name) {
  batch_->Delete(index_.handle(Table::xattrs), name_key(inode, name));
}
void Batch::put_step(InodeNumber inode, const StepRecord& record) {
  batch_->Put(index_.handle(Table::steps), number_key(inode), encode(record));
}
void Batch::erase_step(InodeNumber inode) { batch_->Delete(index_.handle(Table::steps), number_key(inode)); }
void Batch::put_map(InodeNumber step, const KeptMap& map) {
  batch_->Put(index_.handle(Table::maps), number_key(step), encode(map));
}
void Batch::erase_map(InodeNumber step) { batch_->Delete(index_.handle(Table::maps), number_key(step)); }
void Batch::put_number(const char* key, uint64_t value) {
  batch_->Put(index_.handle(Table::kv), key, encode_number(value));
}
void Batch::put_suspect(BlobNumber blob, const SuspectRecord& record) {
  allow_on_full_store();
  batch_->Put(index_.handle(Table::kv), kSuspectPrefix + number_key(blob), encode(record));
}
void Batch::erase_suspect(BlobNumber blob) {
  batch_->Delete(index_.handle(Table::kv), kSuspectPrefix + number_key(blob));
}
void Batch::put_event(uint64_t number, const std::string& event) {
  batch_->Put(index_.handle(Table::kv), kEventPrefix + number_key(number), event);
  if (number > kKeptEvents) batch_->Delete(index_.handle(Table::kv), kEventPrefix + number_key(number - kKeptEvents));
}
bool Batch::empty() const { return batch_->GetWriteBatch()->Count() == 0; }

Result<std::string> Batch::get(Table table, const std::string& key) const {
  std::string value;
  const auto status = batch_->GetFromBatchAndDB(index_.db_.get(), {}, index_.handle(table), key, &value);
  if (!status.ok()) return from_status(status);
  return value;
}
Result<InodeRecord> Batch::inode(InodeNumber number) const {
  return decoded(get(Table::inodes, number_key(number)), decode_inode);
}
Result<BlobRecord> Batch::blob(BlobNumber number) const {
  return decoded(get(Table::blobs, number_key(number)), decode_blob);
}

Index::Index(const Options& options) : options_(options), ballast_(options.folder) {}

Index::~Index() {
  if (!db_) return;
  for (auto* handle : handles_) db_->DestroyColumnFamilyHandle(handle);
  if (const auto status = db_->Close(); !status.ok()) log::error("closing the index: {}", status.ToString());
}

Result<std::unique_ptr<Index>> Index::open(const Options& options) {
  std::unique_ptr<Index> index(new Index(options));
  TRY(index->open_database());
  if (!options.create) TRY(index->check_durable());
  if (!options.read_only) {
    TRY_ASSIGN(index->durable_fd_, io::open_at(AT_FDCWD, options.durable_file, O_RDWR | O_CREAT));
    index->ballast_.restore_all();
  }
  return index;
}

Result<> Index::open_database() {
  constexpr int kShardBits = 2;  // 4 MiB each: any block fits
  const auto cache = rocksdb::NewLRUCache(16 << 20, kShardBits);
  std::vector<rocksdb::ColumnFamilyDescriptor> tables;
  for (const char* name : kTableNames) tables.emplace_back(name, table_options(cache));
  rocksdb::DB* db = nullptr;
  const auto db_options = database_options(options_.create, logs_.env());
  const auto attempt = [&] {
    return options_.read_only ? rocksdb::DB::OpenForReadOnly(db_options, options_.folder, tables, &handles_, &db)
                              : rocksdb::DB::Open(db_options, options_.folder, tables, &handles_, &db);
  };
  auto status = attempt();
  for (const auto part : {Ballast::Part::any_change, Ballast::Part::removals}) {
    if (status.IsNoSpace() && !options_.read_only && ballast_.release(part)) status = attempt();
  }
  if (status.IsNoSpace()) {
    return Error(ENOSPC, options_.folder + ": no room to open the index: " + status.ToString() +
                             "; nothing was changed; make room on this file system and mount again");
  }
  if (!status.ok()) {
    return Error(EIO,
                 options_.folder + ": the index cannot be opened: " + status.ToString() + "; " + lost_index_advice());
  }
  db_.reset(db);
  return success();
}

// An index that ends before what was once durable has lost a part of its log. To go on would mean to treat the
// checkpoints that are named there as garbage.
Result<> Index::check_durable() const {
  auto text = io::read_file(options_.durable_file);
  if (!text) return text.error().errno_value() == ENOENT ? Result<>(success()) : Result<>(std::move(text).error());
  uint64_t durable = 0;
  std::from_chars(text.value().data(), text.value().data() + text.value().size(), durable);
  const uint64_t present = db_->GetLatestSequenceNumber();
  if (present >= durable) return success();
  return Error(EIO, options_.folder + ": the index has lost changes that were durable (it ends at " +
                        std::to_string(present) + ", was durable to " + std::to_string(durable) + "); " +
                        lost_index_advice() + "; to go on with this index, remove " + options_.durable_file);
}

Result<std::string> Index::get(Table table, const std::string& key) const {
  std::string value;
  const auto status = db_->Get({}, handle(table), key, &value);
  if (!status.ok()) return from_status(status);
  return value;
}

Result<InodeRecord> Index::inode(InodeNumber number) const {
  return decoded(get(Table::inodes, number_key(number)), decode_inode);
}
Result<EntryRecord> Index::entry(InodeNumber parent, const std::string& name) const {
  return decoded(get(Table::entries, name_key(parent, name)), decode_entry);
}
Result<std::optional<EntryRecord>> Index::find_entry(InodeNumber parent, const std::string& name) const {
  return none_if_gone(entry(parent, name));
}
Result<BlobRecord> Index::blob(BlobNumber number) const {
  return decoded(get(Table::blobs, number_key(number)), decode_blob);
}
Result<std::string> Index::xattr(InodeNumber inode, const std::string& name) const {
  return get(Table::xattrs, name_key(inode, name));
}
Result<StepRecord> Index::step(InodeNumber inode) const {
  return decoded(get(Table::steps, number_key(inode)), decode_step);
}
Result<std::optional<StepRecord>> Index::find_step(InodeNumber inode) const { return none_if_gone(step(inode)); }
Result<KeptMap> Index::map(InodeNumber step) const { return decoded(get(Table::maps, number_key(step)), decode_map); }
Result<std::vector<io::Digest>> Index::digests(BlobNumber blob, uint64_t group) const {
  return decoded(get(Table::digests, digests_key(blob, group)), decode_digests);
}
Result<uint64_t> Index::number(const char* key) const { return decoded(get(Table::kv, key), decode_number); }

Result<uint64_t> Index::number_or_zero(const char* key) const {
  TRY_ASSIGN(const auto found, none_if_gone(number(key)));
  return found.value_or(0);
}

Result<uint64_t> Index::generation() const { return number_or_zero(kGenerationKey); }

Result<> Index::scan(Table table, const std::string& prefix,
                     const std::function<Result<>(std::string_view, std::string_view)>& visit) const {
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, handle(table)));
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    TRY(visit(it->key().ToStringView(), it->value().ToStringView()));
  }
  if (!it->status().ok()) return from_status(it->status());
  return success();
}

Result<std::vector<DirectoryEntry>> Index::entries(InodeNumber parent) const {
  std::vector<DirectoryEntry> list;
  TRY(scan(Table::entries, number_key(parent), [&](std::string_view key, std::string_view value) -> Result<> {
    TRY_ASSIGN(const EntryRecord entry, decode_entry(value));
    list.push_back({std::string(key_name(key)), entry.inode, entry.type});
    return success();
  }));
  return list;
}

Result<std::vector<DirectoryEntry>> Index::entries_after(InodeNumber parent, const std::string& after,
                                                         size_t most) const {
  const std::string prefix = number_key(parent), behind = name_key(parent, after);
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, handle(Table::entries)));
  std::vector<DirectoryEntry> list;
  for (it->Seek(behind); list.size() < most && it->Valid() && it->key().starts_with(prefix); it->Next()) {
    if (it->key() == behind) continue;
    TRY_ASSIGN(const EntryRecord entry, decode_entry(it->value().ToStringView()));
    list.push_back({std::string(key_name(it->key().ToStringView())), entry.inode, entry.type});
  }
  if (!it->status().ok()) return from_status(it->status());
  return list;
}

Result<bool> Index::has_entries(InodeNumber parent) const {
  const std::string prefix = number_key(parent);
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, handle(Table::entries)));
  it->Seek(prefix);
  if (!it->status().ok()) return from_status(it->status());
  return it->Valid() && it->key().starts_with(prefix);
}

Result<std::vector<std::string>> Index::xattr_names(InodeNumber inode) const {
  std::vector<std::string> names;
  TRY(scan(Table::xattrs, number_key(inode), [&](std::string_view key, std::string_view) -> Result<> {
    names.emplace_back(key_name(key));
    return success();
  }));
  return names;
}

Result<> Index::for_each_inode(const std::function<Result<>(InodeNumber, const InodeRecord&)>& visit) const {
  return scan(Table::inodes, {}, [&](std::string_view key, std::string_view value) -> Result<> {
    TRY_ASSIGN(const InodeRecord record, decode_inode(value));
    return visit(key_number(key), record);
  });
}
Result<> Index::for_each_blob(const std::function<Result<>(BlobNumber, const BlobRecord&)>& visit) const {
  return scan(Table::blobs, {}, [&](std::string_view key, std::string_view value) -> Result<> {
    TRY_ASSIGN(const BlobRecord record, decode_blob(value));
    return visit(key_number(key), record);
  });
}
Result<> Index::for_each_step(const std::function<Result<>(InodeNumber, const StepRecord&)>& visit) const {
  return scan(Table::steps, {}, [&](std::string_view key, std::string_view value) -> Result<> {
    TRY_ASSIGN(const StepRecord record, decode_step(value));
    return visit(key_number(key), record);
  });
}
Result<> Index::for_each_entry(const std::function<Result<>(InodeNumber, const DirectoryEntry&)>& visit) const {
  return scan(Table::entries, {}, [&](std::string_view key, std::string_view value) -> Result<> {
    TRY_ASSIGN(const EntryRecord entry, decode_entry(value));
    return visit(key_number(key), {std::string(key_name(key)), entry.inode, entry.type});
  });
}

Result<> Index::for_each_suspect(const std::function<Result<>(BlobNumber, const SuspectRecord&)>& visit) const {
  const std::string_view prefix = kSuspectPrefix;
  return scan(Table::kv, std::string(prefix), [&](std::string_view key, std::string_view value) -> Result<> {
    TRY_ASSIGN(const SuspectRecord record, decode_suspect(value));
    return visit(key_number(key.substr(prefix.size())), record);
  });
}

Result<std::vector<std::pair<uint64_t, std::string>>> Index::events_after(uint64_t after, size_t most) const {
  const std::string prefix = kEventPrefix;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, handle(Table::kv)));
  std::vector<std::pair<uint64_t, std::string>> events;
  if (after == UINT64_MAX) return events;
  for (it->Seek(prefix + number_key(after + 1)); events.size() < most && it->Valid(); it->Next()) {
    if (!it->key().starts_with(prefix)) break;
    events.emplace_back(key_number(it->key().ToStringView().substr(prefix.size())), it->value().ToString());
  }
  if (!it->status().ok()) return from_status(it->status());
  return events;
}

Result<uint64_t> Index::last_event() const {
  const std::string prefix = kEventPrefix;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, handle(Table::kv)));
  it->SeekForPrev(prefix + number_key(UINT64_MAX));
  if (!it->status().ok()) return from_status(it->status());
  if (!it->Valid() || !it->key().starts_with(prefix)) return uint64_t{0};
  return key_number(it->key().ToStringView().substr(prefix.size()));
}

Result<> Index::commit(Batch batch) {
  if (batch.empty()) return success();
  if (!batch.allowed_on_full_store_) TRY(refuse_when_full());
  const auto write = [&] { return db_->Write({}, batch.batch_->GetWriteBatch()); };
  auto status = write();
  if (!status.ok()) failures_.fetch_add(1, std::memory_order_acq_rel);
  if (!status.ok()) status = resume_and(write, batch.allowed_on_full_store_);
  if (!status.ok()) {
    log::error("a change could not be recorded: {}", status.ToString());
    return from_status(status);
  }
  recorded_.store(db_->GetLatestSequenceNumber(), std::memory_order_release);
  commits_.fetch_add(1, std::memory_order_release);
  return success();
}

Result<> Index::refuse_when_full() const {
  if (ballast_.has(Ballast::Part::any_change)) return success();
  struct statvfs fs {};
  if (::fstatvfs(options_.blobs_fd, &fs) != 0) return last_error("the store's free space");
  if (uint64_t{fs.f_bavail} * fs.f_frsize >= kRoomForChanges) return success();
  return Error(ENOSPC, "the store is full: until there is room only removals are recorded; remove files or steps");
}

rocksdb::Status Index::resume_and(const std::function<rocksdb::Status()>& attempt, bool with_last_ballast) {
  const io::MutexLock one_at_a_time(resume_mutex_);
  const auto resume = [&] {
    auto status = db_->Resume();
    return status.ok() ? attempt() : status;
  };
  auto status = resume();
  if (status.IsNoSpace() && ballast_.release(Ballast::Part::any_change)) status = resume();
  if (status.IsNoSpace() && with_last_ballast && ballast_.release(Ballast::Part::removals)) status = resume();
  if (status.ok()) log::info("the index could not be written, and goes on");
  return status;
}

Result<> Index::sync() {
  io::MutexLock lock(sync_mutex_);
  const uint64_t wanted = commits_.load(std::memory_order_acquire);
  while (synced_ < wanted) {
    if (syncing_) {
      sync_done_.wait(sync_mutex_);
      continue;
    }
    syncing_ = true;
    const uint64_t covered = commits_.load(std::memory_order_acquire);
    lock.unlock();
    if (sync_listener_ != nullptr) sync_listener_->before_sync();
    auto result = sync_now();
    if (sync_listener_ != nullptr) sync_listener_->after_sync();
    lock.lock();
    syncing_ = false;
    if (result) synced_ = covered;
    sync_done_.notify_all();
    if (!result) return result;
  }
  return success();
}

Result<> Index::sync_now() {
  const uint64_t sequence = recorded_.load(std::memory_order_acquire);
  if (blobs_changed_.exchange(false, std::memory_order_acq_rel)) {
    if (auto result = io::fsync_fd(options_.blobs_fd); !result) {
      blobs_changed_.store(true, std::memory_order_release);
      return result;
    }
  }
  const auto synced = ballast_.spend_on([this]() -> Result<> {
    TRY(io::fault_point("index.sync"));
    return logs_.sync();
  });
  if (!synced) {
    failures_.fetch_add(1, std::memory_order_acq_rel);
    log::error("the index could not be synced: {}", synced.error().message());
    return synced;
  }
  std::string text = std::to_string(sequence);
  text.resize(20, '\n');
  return io::write_full(durable_fd_.get(), std::as_bytes(std::span(text)), 0);
}

}  // namespace ckptfs::meta
