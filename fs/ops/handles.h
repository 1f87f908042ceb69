// The handles that the kernel holds: what `fh` in its requests points to. A handle lives from the reply to OPEN or
// OPENDIR until its RELEASE; the kernel names it in no request after that. Those whose RELEASE never came (the
// connection was cut) are ended with the table.
//
// Thread safety: Handles: all of it; lock: mutex_ (a leaf). Handle: its fields are constant but for seen_errors.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "fs/adopt/inline_block_dedup.h"
#include "fs/adopt/speculative_clone.h"
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
  std::shared_ptr<SpeculativeClone> clone;   // its WRITEs go there first
  std::unique_ptr<InlineBlockDedup> blocks;  // or there
  pid_t reader = 0;                          // the thread that opened it for reading only; SourcePredictor counts it
  bool syncs = false;                        // opened with O_DSYNC or O_SYNC: its descriptors sync each write
  bool had_privileges = false;               // suid or sgid, when it was opened for writing
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

template <class T>
class Handles {
 public:
  // Keeps it; the number for `fh`.
  uint64_t add(std::unique_ptr<T> handle) {
    const uint64_t number = reinterpret_cast<uint64_t>(handle.get());
    const io::MutexLock lock(mutex_);
    handles_.emplace(number, std::move(handle));
    return number;
  }
  static T& get(uint64_t number) {
    return *reinterpret_cast<T*>(number);  // NOLINT(performance-no-int-to-ptr): `fh` is a number
  }
  // Out of the table, to be ended by the caller.
  std::unique_ptr<T> take(uint64_t number) {
    const io::MutexLock lock(mutex_);
    auto node = handles_.extract(number);
    return node.empty() ? nullptr : std::move(node.mapped());
  }
  void clear() {
    std::unordered_map<uint64_t, std::unique_ptr<T>> handles;
    const io::MutexLock lock(mutex_);
    handles.swap(handles_);
  }
  template <class Predicate>
  bool any(const Predicate& predicate) const {
    const io::MutexLock lock(mutex_);
    return std::any_of(handles_.begin(), handles_.end(), [&](const auto& one) { return predicate(*one.second); });
  }
  size_t count() const {
    const io::MutexLock lock(mutex_);
    return handles_.size();
  }

 private:
  mutable io::Mutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<T>> handles_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs
