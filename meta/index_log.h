// The files of RocksDB's log, such that a sync that succeeds means what it says.
//
// The kernel reports a failed write-back once and takes the pages for clean: the next sync succeeds, whatever the first
// one lost. RocksDB believes the second sync. So each log file keeps what was appended since its last sync, and after a
// failed sync writes that again before it syncs again. Tables and manifests need no such care: after an error RocksDB
// makes new ones.
#pragma once

namespace rocksdb {
class Env;
}

namespace ckptfs::meta {

// RocksDB's default environment, but for these files. It lives as long as the process.
rocksdb::Env* env_with_trusted_logs();

}  // namespace ckptfs::meta
