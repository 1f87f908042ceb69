// The last failed write of each file, in words, for the xattr user.ckptfs.write_error: DeepSpeed never looks at the
// results of its writes. Kept in memory, for the files that failed last, until the file is emptied or removed.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "fs/base/counters.h"
#include "io/mutex.h"
#include "io/result.h"
#include "meta/tree/tree.h"
#include "meta/types.h"

namespace ckptfs::fs {

class WriteErrors {
 public:
  static constexpr size_t kMaximum = 4096;  // files; the oldest goes

  WriteErrors(const meta::Tree& tree, Counters& counters) : tree_(tree), counters_(counters) {}

  // A write, allocation or write-back of `inode` failed: counted, logged, kept.
  void failed(meta::InodeNumber inode, WriteFailure what, const Error& error);
  std::optional<std::string> last(meta::InodeNumber inode) const;
  void clear(meta::InodeNumber inode);

 private:
  struct Entry {
    int errno_value = 0;
    std::string text;
  };

  // True: this file had no error of this errno so far (worth a line in the log).
  bool record(meta::InodeNumber inode, int errno_value, std::string text);

  const meta::Tree& tree_;
  Counters& counters_;
  mutable io::Mutex mutex_;
  std::unordered_map<meta::InodeNumber, Entry> entries_ GUARDED_BY(mutex_);
  std::deque<meta::InodeNumber> order_ GUARDED_BY(mutex_);  // of insertion, may name cleared ones
};

}  // namespace ckptfs::fs
