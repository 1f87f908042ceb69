#include "meta/index/index_log.h"

#include <fcntl.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <unistd.h>

#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "io/fd.h"
#include "io/mutex.h"

namespace ckptfs::meta {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

IOStatus to_io_status(const std::string& what, const Error& error) {
  const bool no_space = error.errno_value() == ENOSPC;
  return no_space ? IOStatus::NoSpace(what, error.message()) : IOStatus::IOError(what, error.message());
}

// One log. It can be appended to while it is synced. Locks: syncing_ comes before mutex_.
class Log {
 public:
  Log(std::string path, io::Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log() { static_cast<void>(::ftruncate(fd_.get(), static_cast<off_t>(end()))); }  // frees what was allocated ahead

  // If it fails, the next call writes over what was written.
  Result<> append(std::string_view data) {
    const io::MutexLock lock(mutex_);
    TRY(write(data, end_));
    unsynced_.append(data);
    end_ += data.size();
    return success();
  }

  Result<> sync() {
    const io::MutexLock one_at_a_time(syncing_);
    if (lost_) {
      const io::MutexLock lock(mutex_);
      TRY(write(unsynced_, end_ - unsynced_.size()));
    }
    const uint64_t covered = end();
    const auto synced = io::fdatasync_fd(fd_.get());
    lost_ = !synced;
    if (!synced) return with_name("sync " + path_, synced.error());
    const io::MutexLock lock(mutex_);
    unsynced_.erase(0, unsynced_.size() - (end_ - covered));
    return success();
  }

  Result<> allocate(uint64_t offset, uint64_t length) const {
    const auto at = static_cast<off_t>(offset), size = static_cast<off_t>(length);
    return ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, at, size) == 0 ? Result<>(success()) : last_error(path_);
  }

  uint64_t end() const {
    const io::MutexLock lock(mutex_);
    return end_;
  }
  const std::string& path() const { return path_; }

 private:
  Result<> write(std::string_view data, uint64_t offset) const {
    return io::write_full(fd_.get(), std::as_bytes(std::span(data)), static_cast<off_t>(offset));
  }

  const std::string path_;
  const io::Fd fd_;
  io::Mutex syncing_;
  bool lost_ GUARDED_BY(syncing_) = false;  // the last sync failed
  mutable io::Mutex mutex_;
  uint64_t end_ GUARDED_BY(mutex_) = 0;
  std::string unsynced_ GUARDED_BY(mutex_);  // the file's last bytes
};

// The log as RocksDB has it open, until the content of the log is in tables.
class LogFile : public rocksdb::FSWritableFile {
 public:
  LogFile(std::shared_ptr<Log> log, const FileOptions& options) : FSWritableFile(options), log_(std::move(log)) {}

  using FSWritableFile::Append;
  IOStatus Append(const rocksdb::Slice& data, const IOOptions&, IODebugContext*) override {
    return status_of("append", log_->append(data.ToStringView()));
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return status_of("sync", log_->sync()); }
  bool IsSyncThreadSafe() const override { return true; }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Allocate(uint64_t offset, uint64_t length, const IOOptions&, IODebugContext*) override {
    return status_of("allocate", log_->allocate(offset, length));
  }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return log_->end(); }

 private:
  IOStatus status_of(const char* what, const Result<>& done) const {
    return done ? IOStatus::OK() : to_io_status(std::string(what) + " " + log_->path(), done.error());
  }

  const std::shared_ptr<Log> log_;
};

}  // namespace

class IndexLogs::FileSystem : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "ckptfs"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file, IODebugContext* debug) override {
    if (!path.ends_with(".log")) return FileSystemWrapper::NewWritableFile(path, options, file, debug);
    auto opened = io::open_at(AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (!opened) return to_io_status("create " + path, opened.error());
    auto log = std::make_shared<Log>(path, std::move(opened).value());
    *file = std::make_unique<LogFile>(log, options);
    const io::MutexLock lock(mutex_);
    logs_.push_back({std::move(log), /*is_named=*/false});
    return IOStatus::OK();
  }

  Result<> sync() {
    const io::MutexLock one_at_a_time(syncing_);
    std::list<Known> logs;
    {
      const io::MutexLock lock(mutex_);
      logs_.remove_if([](const Known& known) { return known.log.expired(); });
      logs = logs_;
    }
    for (const Known& known : logs) {  // the oldest first, since a log is of no use without those before it
      const auto log = known.log.lock();
      if (!log) continue;
      if (!known.is_named) TRY(io::sync_parent(log->path()));
      TRY(log->sync());
    }
    const io::MutexLock lock(mutex_);
    auto at = logs_.begin();
    for (size_t i = 0; i < logs.size(); ++i, ++at) at->is_named = true;  // logs made meanwhile are behind these
    return success();
  }

 private:
  struct Known {
    std::weak_ptr<Log> log;
    bool is_named = false;  // its name is durable
  };

  io::Mutex syncing_;  // before mutex_
  io::Mutex mutex_;
  std::list<Known> logs_ GUARDED_BY(mutex_);  // in the order in which they were made
};

IndexLogs::IndexLogs()
    : files_(std::make_shared<FileSystem>(rocksdb::FileSystem::Default())), env_(rocksdb::NewCompositeEnv(files_)) {}

IndexLogs::~IndexLogs() = default;

Result<> IndexLogs::sync() { return files_->sync(); }

}  // namespace ckptfs::meta
