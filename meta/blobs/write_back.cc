#include "meta/blobs/write_back.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/fault.h"
#include "io/lease.h"
#include "io/log.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kNamed = 5;                      // files in an error
constexpr size_t kMostWritten = size_t{1} << 16;  // with more written blobs, all is synced

Error is_suspect(int errno_value) {
  return Error(EIO, std::string("what was written to it did not reach the disk (") + std::strerror(errno_value) +
                        "): write it anew from the start, or take what the disk holds (ckptfs verify --accept)");
}

}  // namespace

// If two threads sync a blob through the same descriptor, the kernel tells only one of them of a failure. So one thread
// at a time syncs a blob, and the other then finds the failure here.
class WriteBack::OnlySync {
 public:
  OnlySync(WriteBack& all, BlobNumber blob) : all_(all), blob_(blob) {
    const io::MutexLock lock(all_.mutex_);
    all_.synced_.wait(all_.mutex_, [this]() REQUIRES(all_.mutex_) { return all_.being_synced_.insert(blob_).second; });
  }
  OnlySync(const OnlySync&) = delete;
  OnlySync& operator=(const OnlySync&) = delete;
  ~OnlySync() {
    {
      const io::MutexLock lock(all_.mutex_);
      all_.being_synced_.erase(blob_);
    }
    all_.synced_.notify_all();
  }

 private:
  WriteBack& all_;
  const BlobNumber blob_;
};

WriteBack::WriteBack(Index& index, const Blobs& blobs, PathOf path_of)
    : index_(index), blobs_(blobs), path_of_(std::move(path_of)) {
  index_.set_sync_listener(this);
}

WriteBack::~WriteBack() { index_.set_sync_listener(nullptr); }

Result<> WriteBack::load(bool clean) {
  constexpr time_t kLongestDirty = 600;  // s; the kernel writes back after half a minute, and may be slow
  const io::MutexLock no_sync_meanwhile(syncing_);
  if (!clean) earlier_writes_since_ = timespec{now().tv_sec - kLongestDirty, 0};
  const io::MutexLock lock(mutex_);
  TRY(index_.for_each_suspect([this](BlobNumber blob, const SuspectRecord& record) REQUIRES(mutex_) -> Result<> {
    suspects_.emplace(blob, Suspect{record, /*is_new=*/false, /*is_recorded=*/true});
    return success();
  }));
  count_.store(suspects_.size(), std::memory_order_release);
  return success();
}

void WriteBack::note_written(InodeNumber file, BlobNumber blob) {
  const io::MutexLock lock(mutex_);
  const auto [known, fresh] = written_.try_emplace(blob);
  known->second.file = file;
  known->second.round = round_;
  if (fresh) known->second.pin = pin(blob);
}

// None if descriptors may be needed for something else.
io::Fd WriteBack::pin(BlobNumber blob) const {
  constexpr rlim_t kMost = 8192;
  auto fd = blobs_.open(blob, O_PATH);
  rlimit limit{};
  if (!fd || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const auto number = static_cast<rlim_t>(fd.value().get());
  return number < std::min(kMost, limit.rlim_cur / 4) ? std::move(fd).value() : io::Fd();
}

void WriteBack::note_synced_elsewhere(BlobNumber blob) {
  const io::MutexLock lock(mutex_);
  const auto known = written_.find(blob);
  if (known != written_.end()) known->second.synced_elsewhere = true;
}

void WriteBack::forget(BlobNumber blob) {
  const io::MutexLock lock(mutex_);
  written_.erase(blob);
}

void WriteBack::note_truncated(BlobNumber blob) {
  const io::MutexLock lock(mutex_);
  const auto known = written_.find(blob);
  if (known != written_.end()) known->second.truncated = true;
}

void WriteBack::note_closed(BlobNumber blob) {
  {
    const io::MutexLock lock(mutex_);
    const auto known = written_.find(blob);
    if (known == written_.end() || !std::exchange(known->second.truncated, false)) return;
  }
  begin_write_back(blob);
}

// Reports no error: whoever syncs the file gets it.
void WriteBack::begin_write_back(BlobNumber blob) const {
  if (const auto fd = blobs_.open(blob, O_RDONLY)) ::sync_file_range(fd.value().get(), 0, 0, SYNC_FILE_RANGE_WRITE);
}

void WriteBack::note_replacing(InodeNumber file, BlobNumber blob) {
  {
    const io::MutexLock lock(mutex_);
    if (!written_.contains(blob)) return;
    if (!in_sync_) {
      replacing_.emplace(blob, file);
      return;
    }
  }
  flush_before_names({{blob, file}}, Recorded::durably);
}

void WriteBack::before_sync() {
  std::unordered_map<BlobNumber, InodeNumber> files;
  {
    const io::MutexLock lock(mutex_);
    in_sync_ = true;
    files.swap(replacing_);
  }
  flush_before_names(files, Recorded::by_this_sync);
}

void WriteBack::after_sync() {
  const io::MutexLock lock(mutex_);
  in_sync_ = false;
}

// Syncs each blob through a new descriptor, which the kernel tells of an error that nobody has seen yet.
void WriteBack::flush_before_names(const std::unordered_map<BlobNumber, InodeNumber>& files, Recorded how) {
  for (const auto& [blob, file] : files) begin_write_back(blob);
  for (const auto& [blob, file] : files) {
    const auto fd = blobs_.open(blob, O_RDONLY);
    if (!fd) continue;  // removed since
    Result<> synced = io::fault_point("write_back.before_names");
    if (synced) synced = io::fdatasync_fd(fd.value().get());
    if (!synced) suspect(file, blob, synced.error(), fd.value().get(), how);
  }
}

Result<> WriteBack::check(BlobNumber blob) const {
  if (suspects() == 0) return success();
  const io::MutexLock lock(mutex_);
  const auto found = suspects_.find(blob);
  return found == suspects_.end() ? Result<>(success()) : is_suspect(found->second.record.errno_value);
}

Result<> WriteBack::check_all() {
  forget_removed();
  record_what_failed();
  std::vector<InodeNumber> files;
  {
    const io::MutexLock lock(mutex_);
    for (const auto& [blob, suspect] : suspects_) {
      if (suspect.is_new) files.push_back(suspect.record.file);
    }
  }
  if (files.empty()) return success();
  return Error(EIO, "what was written to these files did not reach the disk:" + names_of(files));
}

Result<> WriteBack::sync(InodeNumber file, BlobNumber blob, int fd) {
  TRY(check(blob));
  auto synced = sync_one(file, blob, fd);
  if (!synced) {
    failed(file, blob, fd, synced.error());
    return synced;
  }
  return check(blob);  // another thread may have been told
}

// The file system has the error, too. Syncs all now, while this blob explains the error, to find out which other blobs
// have one.
void WriteBack::failed(InodeNumber file, BlobNumber blob, int fd, const Error& error) {
  suspect(file, blob, error, fd);
  static_cast<void>(sync_all());  // which logs what it finds
}

Result<> WriteBack::sync_one(InodeNumber file, BlobNumber blob, int fd) {
  const OnlySync only(*this, blob);
  Result<> synced = io::fault_point("write_back.sync");
  if (synced) synced = io::fdatasync_fd(fd);
  if (!synced) suspect(file, blob, synced.error(), fd);
  return synced;
}

Result<> WriteBack::sync_all() {
  const io::MutexLock one_at_a_time(syncing_);
  uint64_t round = 0;
  std::unordered_set<BlobNumber> explaining;
  {
    const io::MutexLock lock(mutex_);
    round = ++round_;
    explaining = std::exchange(explaining_, {});
  }
  const uint64_t index_failures = index_.failures();
  Result<> synced = io::fault_point("write_back.sync_all");
  if (synced) synced = io::syncfs_fd(blobs_.folder_fd());
  if (!synced) return explain(synced.error(), std::move(explaining));
  index_failures_ = index_failures;  // these explain no later error
  earlier_writes_since_.reset();
  const io::MutexLock lock(mutex_);
  clean_ = round;
  last_clean_ = std::chrono::steady_clock::now();
  return success();
}

// Finds out which blobs an error of the file system was about, and makes them suspect. An error of another kind (no
// memory, say) makes no blob suspect, and the next call tells more.
Result<> WriteBack::explain(const Error& error, std::unordered_set<BlobNumber> explaining) {
  log::error("the store's file system failed to write: {}", error.message());
  const std::vector<Entry> written = all_written();
  for (const Entry& entry : written) {
    const auto fd = blobs_.open(entry.blob, O_RDONLY);
    if (fd) static_cast<void>(sync_one(entry.file, entry.blob, fd.value().get()));  // if not, it was removed since
  }
  {
    const io::MutexLock lock(mutex_);
    explaining.merge(std::exchange(explaining_, {}));
  }
  const bool of_the_index = std::exchange(index_failures_, index_.failures()) != index_.failures();
  const bool explained =
      of_the_index || std::ranges::any_of(written, [&](const Entry& entry) { return explaining.contains(entry.blob); });
  std::vector<InodeNumber> found;
  for (const Entry& entry : written) {
    if (!explaining.contains(entry.blob)) {
      if (explained && entry.tells) continue;
      const auto fd = blobs_.open(entry.blob, O_RDONLY);
      if (!fd) continue;
      suspect(entry.file, entry.blob, error, fd.value().get());
    }
    found.push_back(entry.file);
  }
  {
    const io::MutexLock lock(mutex_);
    explaining_.clear();
  }
  const std::string names = names_of(found);
  return Error(error.errno_value(), "the disk failed to take what was written" +
                                        (names.empty() ? "" : "; not to be trusted any more:" + names) + " (" +
                                        error.message() + ")");
}

std::string WriteBack::names_of(const std::vector<InodeNumber>& files) const {
  std::string names;
  for (size_t i = 0; i < std::min(files.size(), kNamed); ++i) names += " " + path_of_(files[i]);
  if (files.size() > kNamed) names += " and " + std::to_string(files.size() - kNamed) + " more";
  return names;
}

std::vector<WriteBack::Entry> WriteBack::written_before(uint64_t round) const {
  const io::MutexLock lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [blob, written] : written_) {
    if (written.round >= round) continue;
    entries.push_back({blob, written.file, written.round, written.pin && !written.synced_elsewhere});
  }
  return entries;
}

std::vector<WriteBack::Entry> WriteBack::all_written() const {
  std::vector<Entry> entries = written_before(UINT64_MAX);
  if (!earlier_writes_since_) return entries;
  std::unordered_set<BlobNumber> known;
  for (const Entry& entry : entries) known.insert(entry.blob);
  const auto listed =
      index_.for_each_inode([&](InodeNumber number, const InodeRecord& record) REQUIRES(syncing_) -> Result<> {
        if (!record.is_live_file() || record.nlink == 0 || known.contains(record.blob)) return success();
        const auto status = blobs_.stat(record.blob);
        if (status && later(status.value().st_ctim, *earlier_writes_since_)) {
          entries.push_back({record.blob, number});
        }
        return success();
      });
  if (!listed) log::error("not all files are asked for what failed: {}", listed.error().message());
  return entries;
}

Result<> WriteBack::make_sure(BlobNumber blob) {
  bool covered = false;
  {
    const io::MutexLock lock(mutex_);
    const auto known = written_.find(blob);
    covered = clean_ != 0 && (known == written_.end() || known->second.round < clean_);
  }
  if (!covered) TRY(sync_all());
  return check(blob);
}

void WriteBack::suspect(InodeNumber file, BlobNumber blob, const Error& error, int fd, Recorded how) {
  const SuspectRecord failed{file, error.errno_value()};
  {
    const io::MutexLock lock(mutex_);
    explaining_.insert(blob);
    const auto [known, fresh] = suspects_.emplace(blob, Suspect{failed});
    if (!fresh) {
      ++known->second.failures;
      return;
    }
    count_.store(suspects_.size(), std::memory_order_release);
  }
  log::error(
      "{}: what was written to it did not reach the disk: {}; it is not saved, sealed or shared until it is "
      "written anew (blob {})",
      path_of_(file), error.message(), Blobs::name(blob));
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  if (const auto recorded = record(blob, how); !recorded) {
    log::error("{}: that its writing failed is not recorded yet: {}", path_of_(file), recorded.error().message());
  }
}

Result<> WriteBack::record(BlobNumber blob, Recorded how) {
  {
    const io::MutexLock one_at_a_time(recording_);
    Batch batch(index_);
    {
      const io::MutexLock lock(mutex_);
      const auto known = suspects_.find(blob);
      if (known == suspects_.end()) return success();  // trusted meanwhile
      batch.put_suspect(blob, known->second.record);
    }
    TRY(io::fault_point("write_back.record"));
    TRY(index_.commit(std::move(batch)));
    const io::MutexLock lock(mutex_);
    if (const auto known = suspects_.find(blob); known != suspects_.end()) known->second.is_recorded = true;
  }
  return how == Recorded::durably ? index_.sync() : success();
}

void WriteBack::record_what_failed() {
  std::vector<BlobNumber> missing;
  {
    const io::MutexLock lock(mutex_);
    for (const auto& [blob, suspect] : suspects_) {
      if (!suspect.is_recorded) missing.push_back(blob);
    }
  }
  for (const BlobNumber blob : missing) {
    if (!record(blob, Recorded::durably)) return;  // it has been logged; the next call tries again
  }
}

Result<> WriteBack::trust(BlobNumber blob) {
  if (suspects() == 0) return success();
  const io::MutexLock one_at_a_time(recording_);
  uint64_t failures = 0;
  {
    const io::MutexLock lock(mutex_);
    const auto known = suspects_.find(blob);
    if (known == suspects_.end()) return success();
    failures = known->second.failures;
  }
  Batch batch(index_);
  batch.erase_suspect(blob);
  batch.allow_on_full_store();  // a file is emptied, which makes room
  TRY(index_.commit(std::move(batch)));
  TRY(io::fault_point("write_back.trust"));
  const io::MutexLock lock(mutex_);
  const auto known = suspects_.find(blob);
  if (known == suspects_.end()) return success();
  if (known->second.failures == failures) {
    suspects_.erase(known);
  } else {  // it failed once more
    known->second.is_recorded = false;
  }
  count_.store(suspects_.size(), std::memory_order_release);
  return success();
}

// Forgets suspect blobs that were removed. Their records in the index are gone already.
void WriteBack::forget_removed() {
  for (const auto& [blob, suspect] : suspect_blobs()) {
    const auto status = blobs_.stat(blob);
    if (status || status.error().errno_value() != ENOENT) continue;
    const io::MutexLock lock(mutex_);
    suspects_.erase(blob);
    count_.store(suspects_.size(), std::memory_order_release);
  }
}

std::vector<std::pair<BlobNumber, SuspectRecord>> WriteBack::suspect_blobs() const {
  const io::MutexLock lock(mutex_);
  std::vector<std::pair<BlobNumber, SuspectRecord>> list;
  for (const auto& [blob, suspect] : suspects_) list.emplace_back(blob, suspect.record);
  return list;
}

void WriteBack::prune(const IsWriting& is_writing) {
  if (is_time_to_sync()) static_cast<void>(sync_all());  // which logs what it finds
  uint64_t clean = 0;
  {
    const io::MutexLock lock(mutex_);
    clean = clean_;
  }
  forget_removed();
  record_what_failed();
  for (const Entry& entry : written_before(clean)) {
    if (is_writing(entry.file)) continue;
    const auto fd = blobs_.open(entry.blob, O_RDONLY);
    if (fd) {
      const auto mapped = io::has_writer(fd.value().get());  // a mapping outlives its descriptor
      if (!mapped || mapped.value()) continue;
    }
    const io::MutexLock lock(mutex_);
    const auto known = written_.find(entry.blob);
    if (known != written_.end() && known->second.round == entry.round) written_.erase(known);
  }
}

// After a minute the kernel has written most of it by itself.
bool WriteBack::is_time_to_sync() const {
  constexpr std::chrono::minutes kSyncInterval{1};
  const io::MutexLock lock(mutex_);
  const bool old = std::chrono::steady_clock::now() - last_clean_ >= kSyncInterval;
  return !written_.empty() && (old || written_.size() > kMostWritten);
}

}  // namespace ckptfs::meta
