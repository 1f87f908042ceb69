// Empty blobs made ahead of the next save, which then only has to clone into them: creating a file costs XFS more than
// cloning one, and all are created under the one lock of blobs/.
//
// A spare is *tentative* in the index from before its file is there, as what a save makes itself: after a crash the
// next start deletes it. A thread of its own makes them, after a save, as many as that save took.
//
// Thread safety: every member, from any thread. Lock: mutex_, never held across a change of the tree or a system call.
#pragma once

#include <cstddef>
#include <vector>

#include "io/background_thread.h"
#include "io/mutex.h"
#include "meta/blobs/blobs.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

class SpareBlobs {
 public:
  SpareBlobs(Tree& tree, const Blobs& blobs);

  // At most `count` of them, from now on the caller's, as if it had allotted and created them.
  std::vector<BlobNumber> take(size_t count);
  // That so many are there when the next save comes. Returns at once.
  void prepare(size_t count);
  size_t ready() const;
  // What nobody took is doomed, and no more are made. Without it the spares are left as by a crash.
  void stop();

 private:
  void run();
  void make(size_t count) EXCLUDES(mutex_);
  Result<> create(BlobNumber number) const EXCLUDES(mutex_);

  Tree& tree_;
  const Blobs& blobs_;

  mutable io::Mutex mutex_;
  std::vector<BlobNumber> ready_ GUARDED_BY(mutex_);
  size_t wanted_ GUARDED_BY(mutex_) = 0;
  io::BackgroundThread thread_;
};

}  // namespace ckptfs::meta
