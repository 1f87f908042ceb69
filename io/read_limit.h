// How much is read of files that others wrote, before whoever reads them gives up: their readers ask before each read.
//
// Thread safety: one thread at a time; the flag may be set by any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "io/result.h"

namespace ckptfs::io {

class ReadLimit {
 public:
  ReadLimit() = default;  // none
  // `stop`: set when nobody needs what is read any more; outlives the limit.
  explicit ReadLimit(uint64_t bytes, const std::atomic<bool>* stop = nullptr)
      : most_(bytes), left_(bytes), stop_(stop) {}

  // EFBIG: with that many bytes it is too much. ECANCELED: stop is set. Once reached, the limit refuses every read.
  Result<> take(uint64_t bytes);
  const std::optional<Error>& reached() const { return reached_; }

 private:
  uint64_t most_ = UINT64_MAX;
  uint64_t left_ = UINT64_MAX;
  const std::atomic<bool>* stop_ = nullptr;
  std::optional<Error> reached_;
};

// A descriptor, which stays the caller's, and the limit that its reads count for.
class LimitedFile {
 public:
  // `limit`: none: as much as it has.
  LimitedFile(int descriptor, ReadLimit* limit = nullptr) : descriptor_(descriptor), limit_(limit) {}

  int descriptor() const { return descriptor_; }
  // As io::read_full.
  Result<size_t> read_full(std::span<std::byte> buffer, uint64_t offset) const;

 private:
  int descriptor_;
  ReadLimit* limit_;
};

}  // namespace ckptfs::io
