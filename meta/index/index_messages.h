// What RocksDB has to say, as lines of our log.
#pragma once

#include <memory>

namespace rocksdb {
class Logger;
}

namespace ckptfs::meta {

// Warnings and errors. RocksDB's own log is a file beside the index, so its disk fails with it, and a line that is
// written after one that failed ends the process (an assertion of its WritableFileWriter). Any thread.
std::shared_ptr<rocksdb::Logger> index_messages();

}  // namespace ckptfs::meta
