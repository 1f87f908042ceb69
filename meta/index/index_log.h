// The files of RocksDB's log, such that a sync that succeeds means what it says.
//
// The kernel reports a failed write-back once and takes the pages for clean: the next sync succeeds, whatever the first
// one lost. RocksDB believes the second sync. So each log file keeps what was appended since its last sync, and after a
// failed sync writes that again before it syncs again. Tables and manifests need no such care: after an error RocksDB
// makes new ones. It relies on the log, though: it records a table only when the logs before it are synced, so the next
// open finds no table that is ahead of a log.
//
// Index syncs the log here and not by SyncWAL, which ends the process (an assertion of WritableFileWriter, 7.8) where
// an append or a sync of that log has failed before, and whose error leaves a Resume beside it waiting forever.
#pragma once

#include <memory>

#include "io/result.h"

namespace rocksdb {
class Env;
}

namespace ckptfs::meta {

// Of one index. Thread safety: all of it. Locks: those of index_log.cc, leaves.
class IndexLogs {
 public:
  IndexLogs();
  ~IndexLogs();
  IndexLogs(const IndexLogs&) = delete;
  IndexLogs& operator=(const IndexLogs&) = delete;

  // RocksDB's default environment, but for its log files. It must outlive the database.
  rocksdb::Env* env() const { return env_.get(); }
  // What was appended before the call is on the disk.
  Result<> sync();

 private:
  class FileSystem;
  std::shared_ptr<FileSystem> files_;
  std::unique_ptr<rocksdb::Env> env_;
};

}  // namespace ckptfs::meta
