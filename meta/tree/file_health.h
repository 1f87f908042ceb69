// What is known of files beyond the index: which are damaged, whether each was inspected after a crash, and which of
// them a writer that survived the last daemon may still write to.
//
// Thread safety: all of it. Lock: mutex_, a leaf; files are not looked at under it.
#pragma once

#include <atomic>
#include <unordered_set>
#include <utility>
#include <vector>

#include "io/mutex.h"
#include "meta/blobs/blobs.h"
#include "meta/index/index.h"
#include "meta/types.h"

namespace ckptfs::meta {

class FileHealth {
 public:
  struct Start {
    InodeNumber first_new = 0;  // inodes below were there at the start
    bool inspected = true;
    std::unordered_set<InodeNumber> damaged;  // blob missing or short
  };
  FileHealth(const Index& index, const Blobs& blobs, Start start)
      : index_(index),
        blobs_(blobs),
        first_new_(start.first_new),
        inspected_(start.inspected),
        damaged_(std::move(start.damaged)) {}

  bool is_damaged(InodeNumber inode) const;
  void note_damaged(InodeNumber inode);
  // Those that are still there.
  std::vector<InodeNumber> damaged_files() const;
  // After a crash: has every file been looked at (meta/store/inspection.h)?
  bool is_inspected() const { return inspected_.load(std::memory_order_acquire); }
  void set_inspected(const std::vector<InodeNumber>& survivors_write);
  // True of a live file while a writer that survived the last daemon has it open; forgets it once that is over. Until
  // all are inspected, of each that was there before.
  bool is_recovered(InodeNumber inode) const;

 private:
  const Index& index_;
  const Blobs& blobs_;
  const InodeNumber first_new_;
  std::atomic<bool> inspected_;
  mutable io::Mutex mutex_;
  mutable std::unordered_set<InodeNumber> recovered_ GUARDED_BY(mutex_);
  std::unordered_set<InodeNumber> damaged_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::meta
