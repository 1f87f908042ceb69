// What the kernel holds of open files and directories; fs/base/handle_table.h keeps them.
//
// Thread safety: a Handle's fields are constant but for seen_errors.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "fs/adopt/inline_block_dedup.h"
#include "fs/base/handle_table.h"
#include "fs/base/user_budget.h"
#include "fs/open/data_path.h"
#include "fs/open/open_files.h"
#include "io/mutex.h"
#include "meta/types.h"

namespace ckptfs::fs {

// An open regular file.
struct Handle {
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (spliced != nullptr) --*spliced;
  }

  DescriptorBudget::Claim claim;  // what of the daemon's descriptors it counts for
  std::shared_ptr<OpenFile> file;
  std::atomic<unsigned>* spliced = nullptr;  // OpenFile::spliced, which it is counted in
  int descriptor = -1;                       // the inode's shared one, O_RDONLY
  bool writing = false;
  std::unique_ptr<DataPath> data;  // none: passthrough, reads and writes do not come here
  std::atomic<uint64_t> seen_errors{0};
  std::unique_ptr<InlineBlockDedup> dedup;  // its WRITEs go there first
  pid_t reader = 0;                         // the thread that opened it for reading only; SourcePredictor counts it
  bool syncs = false;                       // opened with O_DSYNC or O_SYNC: its descriptors sync each write
  bool had_privileges = false;              // suid or sgid, when it was opened for writing
};

// An open directory: a snapshot of its entries, taken when it is opened or rewound.
struct DirectoryHandle {
  explicit DirectoryHandle(meta::InodeNumber folder) : inode(folder) {}

  using Entries = std::vector<meta::DirectoryEntry>;

  std::shared_ptr<const Entries> snapshot() const {
    const io::MutexLock lock(mutex);
    return entries;
  }
  void replace(Entries fresh, UserBudget::Claim of_fresh) {
    auto next = std::make_shared<const Entries>(std::move(fresh));
    const io::MutexLock lock(mutex);
    entries = std::move(next);
    claim = std::move(of_fresh);
  }

  const meta::InodeNumber inode;
  mutable io::Mutex mutex;
  std::shared_ptr<const Entries> entries GUARDED_BY(mutex);
  UserBudget::Claim claim GUARDED_BY(mutex);  // what of the daemon's memory they count for
};

}  // namespace ckptfs::fs
