// Empty blobs made ahead of the next save, which then only has to clone into them: creating a file costs XFS more than
// cloning one, and all are created under the one lock of blobs/.
//
// A spare is *tentative* in the index from before its file is there, as what a save makes itself: after a crash the
// next start deletes it. A thread of its own makes them, after a save, as many as that save took.
//
// Thread safety: every member, from any thread. Lock: mutex_, never held across a change of the tree or a system call.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "io/mutex.h"
#include "meta/blobs/blobs.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

class SpareBlobs {
 public:
  SpareBlobs(Tree& tree, const Blobs& blobs);
  ~SpareBlobs();  // without stop(): leaves its spares as a crash would

  // At most `count` of them, from now on the caller's, as if it had allotted and created them.
  std::vector<BlobNumber> take(size_t count);
  // That so many are there when the next save comes. Returns at once.
  void prepare(size_t count);
  size_t ready() const;
  // What nobody took is doomed, and no more are made.
  void stop();

 private:
  void end_thread();
  void run();
  void make(size_t count) EXCLUDES(mutex_);
  bool is_stopping() const;
  Result<> create(BlobNumber number) const EXCLUDES(mutex_);
  Result<std::vector<BlobNumber>> allot(size_t count) EXCLUDES(mutex_);

  Tree& tree_;
  const Blobs& blobs_;

  mutable io::Mutex mutex_;
  io::CondVar wake_;
  std::vector<BlobNumber> ready_ GUARDED_BY(mutex_);
  size_t wanted_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ckptfs::meta
