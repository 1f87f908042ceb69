// What a push reads from its image: the digests of its files, and their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "io/digest.h"
#include "io/mutex.h"
#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/step_image.h"

namespace ckptfs::meta::remote {

// Those of an entry's chunks; none for what is no file. EBADMSG, naming it: the image has another number of them.
Result<std::vector<io::Digest>> digests_of(const StepImage& image, size_t index);

// The digests of one file after the other, for the threads that send files in that order. Thread-safe.
// Lock: mutex_, held while digests are read: the others would ask for the same file.
class DigestsInOrder {
 public:
  using Digests = std::shared_ptr<const std::vector<io::Digest>>;
  explicit DigestsInOrder(const StepImage& image) : image_(image) {}
  Result<Digests> of(size_t index);

 private:
  const StepImage& image_;
  io::Mutex mutex_;
  size_t index_ GUARDED_BY(mutex_) = 0;
  Digests last_ GUARDED_BY(mutex_);
};

// A range of a file, read from the image chunk by chunk, and compared with the digests. One chunk is in memory. What is
// not as its digest says is ESTALE if the image is no longer current, else EBADMSG, naming the file.
class FileContent {
 public:
  // `throttle`: called before so many bytes are read. `offset`: a multiple of kChunkBytes.
  FileContent(const StepImage& image, DigestsInOrder& digests, std::function<void(uint64_t bytes)> throttle,
              size_t index, uint64_t offset, uint64_t size);

  io::ObjectContent content();  // this must outlive it

 private:
  Result<> read(uint64_t offset, std::span<std::byte> buffer);
  Result<> load(uint64_t chunk);
  Error differs(uint64_t chunk) const;

  const StepImage& image_;
  DigestsInOrder& digests_;
  const std::function<void(uint64_t bytes)> throttle_;
  const size_t index_;
  const uint64_t offset_, size_;
  std::vector<std::byte> buffer_;
  uint64_t loaded_ = UINT64_MAX;  // the number of the chunk in the buffer
};

}  // namespace ckptfs::meta::remote
