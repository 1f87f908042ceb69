#include "meta/index_log.h"

#include <fcntl.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "io/fd.h"

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

// RocksDB appends and syncs at the same time. Locks: syncing_ comes before mutex_.
class LogFile : public rocksdb::FSWritableFile {
 public:
  LogFile(std::string path, io::Fd fd, const FileOptions& options)
      : FSWritableFile(options), path_(std::move(path)), fd_(std::move(fd)) {}

  using FSWritableFile::Append;
  // What failed is written over by the next call.
  IOStatus Append(const rocksdb::Slice& data, const IOOptions&, IODebugContext*) override {
    const std::lock_guard lock(mutex_);
    if (auto written = write(data.ToStringView(), end_); !written) return failed("append", written.error());
    unsynced_.append(data.data(), data.size());
    end_ += data.size();
    return IOStatus::OK();
  }

  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    const std::lock_guard one_at_a_time(syncing_);
    if (lost_) {
      const std::lock_guard lock(mutex_);
      if (auto again = write(unsynced_, end_ - unsynced_.size()); !again) return failed("write again", again.error());
    }
    const uint64_t covered = end();
    const auto synced = io::fdatasync_fd(fd_.get());
    lost_ = !synced;
    if (!synced) return failed("sync", synced.error());
    const std::lock_guard lock(mutex_);
    unsynced_.erase(0, unsynced_.size() - (end_ - covered));
    return IOStatus::OK();
  }
  bool IsSyncThreadSafe() const override { return true; }

  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

  // Gives back what was allocated beyond the end.
  IOStatus Close(const IOOptions&, IODebugContext*) override {
    if (fd_) static_cast<void>(::ftruncate(fd_.get(), static_cast<off_t>(end())));
    fd_.reset();
    return IOStatus::OK();
  }
  ~LogFile() override { Close({}, nullptr).PermitUncheckedError(); }

  IOStatus Allocate(uint64_t offset, uint64_t length, const IOOptions&, IODebugContext*) override {
    if (::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(length)) == 0) {
      return IOStatus::OK();
    }
    return failed("allocate", last_error());
  }

  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return end(); }

 private:
  Result<> write(std::string_view data, uint64_t offset) const {
    return io::write_full(fd_.get(), std::as_bytes(std::span(data)), static_cast<off_t>(offset));
  }
  uint64_t end() const {
    const std::lock_guard lock(mutex_);
    return end_;
  }
  IOStatus failed(const std::string& what, const Error& error) const { return to_io_status(what + " " + path_, error); }

  const std::string path_;
  io::Fd fd_;
  std::mutex syncing_;
  bool lost_ = false;  // guarded by syncing_; the last sync failed
  mutable std::mutex mutex_;
  uint64_t end_ = 0;      // guarded by mutex_
  std::string unsynced_;  // guarded by mutex_; the file's last bytes
};

class FileSystemWithLogs : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "ckptfs"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file, IODebugContext* debug) override {
    if (!path.ends_with(".log")) return FileSystemWrapper::NewWritableFile(path, options, file, debug);
    auto opened = io::open_at(AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (!opened) return to_io_status("create " + path, opened.error());
    *file = std::make_unique<LogFile>(path, std::move(opened).value(), options);
    return IOStatus::OK();
  }
};

}  // namespace

rocksdb::Env* env_with_trusted_logs() {
  static rocksdb::Env* const env =
      rocksdb::NewCompositeEnv(std::make_shared<FileSystemWithLogs>(rocksdb::FileSystem::Default())).release();
  return env;
}

}  // namespace ckptfs::meta
