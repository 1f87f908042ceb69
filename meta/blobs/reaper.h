// The reaper: makes the index durable once a second, and deletes blobs whose last name is durably gone.
//
// Order, so that a power loss can never leave a name without its blob, nor forget that a blob is garbage: the batch
// that doomed it is synced; the file is removed; blobs/ is synced; only then does the blob's record go.
//
// Thread safety: doom() from any thread. Lock: mutex_, never held while anything is synced or removed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/background_thread.h"
#include "io/mutex.h"
#include "meta/blobs/blobs.h"
#include "meta/blobs/space.h"
#include "meta/blobs/write_back.h"
#include "meta/index/index.h"

namespace ckptfs::meta {

class Reaper {
 public:
  Reaper(Index& index, const Blobs& blobs, const Space& space, WriteBack& write_back);

  // Its last name has gone in a committed batch.
  void doom(BlobNumber blob);
  // What the last daemon left to be removed.
  void doom(const std::vector<BlobNumber>& blobs);
  // Ends the thread after a last round, as the destructor does.
  void stop() { thread_.stop(); }

 private:
  void run();
  void round(std::vector<BlobNumber> doomed) EXCLUDES(mutex_);
  Result<> remove(std::vector<BlobNumber>& doomed) EXCLUDES(mutex_);
  Result<> remove_some(std::span<const BlobNumber> doomed) EXCLUDES(mutex_);

  Index& index_;
  const Blobs& blobs_;
  const Space& space_;
  WriteBack& write_back_;

  io::Mutex mutex_;
  std::vector<BlobNumber> doomed_ GUARDED_BY(mutex_);
  io::BackgroundThread thread_;
};

}  // namespace ckptfs::meta
