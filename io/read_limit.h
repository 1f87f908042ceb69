// Limits how much is read of files that others wrote. Their readers ask before each read.
//
// Thread safety: one thread at a time. Any thread may set the flag.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "io/readable_file.h"
#include "io/result.h"

namespace ckptfs::io {

class ReadLimit {
 public:
  ReadLimit() = default;  // no limit
  // `stop` is set when nobody needs the result any more. It must outlive the limit.
  explicit ReadLimit(uint64_t bytes, const std::atomic<bool>* stop = nullptr)
      : most_(bytes), left_(bytes), stop_(stop) {}

  // Fails with EFBIG if these bytes exceed the limit, and with ECANCELED if `stop` is set. After the first failure
  // every call fails.
  Result<> take(uint64_t bytes);
  const std::optional<Error>& reached() const { return reached_; }

 private:
  uint64_t most_ = UINT64_MAX;
  uint64_t left_ = UINT64_MAX;
  const std::atomic<bool>* stop_ = nullptr;
  std::optional<Error> reached_;
};

// A file and the limit for its reads. The caller owns the file.
class LimitedFile {
 public:
  // Without `limit`, reads are not limited. A descriptor is such a file, hence no `explicit`.
  // NOLINTNEXTLINE(google-explicit-constructor)
  LimitedFile(int descriptor, ReadLimit* limit = nullptr) : descriptor_(descriptor), limit_(limit) {}

  // NOLINTNEXTLINE(google-explicit-constructor)
  LimitedFile(const ReadableFile& file, ReadLimit* limit = nullptr)
      : descriptor_(file.descriptor()), source_(file.source()), limit_(limit) {}

  // Like io::read_full.
  Result<size_t> read_full(std::span<std::byte> buffer, uint64_t offset) const;
  Result<uint64_t> size() const;

 private:
  int descriptor_;
  const ByteSource* source_ = nullptr;  // null: the descriptor
  ReadLimit* limit_;
};

}  // namespace ckptfs::io
