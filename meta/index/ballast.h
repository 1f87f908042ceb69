// The ballast: room on a full store that is kept for the index. It is two files beside the index with blocks of their
// own. One, of 48 MiB, is removed when any change finds no room. The other, of 16 MiB, is removed only when a removal
// finds none. So what makes room can always be recorded.
//
// Without the first, and with less than 16 MiB free, the index records only what removes something
// (Index::refuse_when_full). A start on a full store releases a part before it tries anything. Both are made again once
// there is room.
//
// Thread safety: all of it. Lock: mutex_ (a leaf), held while a file is made or removed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "io/mutex.h"
#include "io/result.h"

namespace ckptfs::meta {

class Ballast {
 public:
  enum class Part { any_change, removals };

  // Of the index in this folder. Finds what is there.
  explicit Ballast(std::string folder);

  uint64_t bytes() const;
  bool has(Part part) const;
  // Gives its blocks back. False: it was not there.
  bool release(Part part);
  // Attempts what must succeed on a full store, too: again, while it finds no room and there is ballast to give.
  Result<> spend_on(const std::function<Result<>()>& attempt);
  // Makes what is missing. `raw_free`: of the file system; `free`: without the reserve of the store.
  void restore(uint64_t free, uint64_t raw_free);
  // Likewise, however little room there is.
  void restore_all() { restore(UINT64_MAX, UINT64_MAX); }

 private:
  bool make(Part part) const;
  std::string path_of(Part part) const;

  const std::string folder_;
  mutable io::Mutex mutex_;
  bool has_any_change_ GUARDED_BY(mutex_) = false;
  bool has_removals_ GUARDED_BY(mutex_) = false;
};

}  // namespace ckptfs::meta
