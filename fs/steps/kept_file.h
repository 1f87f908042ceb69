// Writes the content of a file of a view into a blob, so that it stays when the files that it is made from go. Blocks
// are shared where nothing is cast. What was written is made durable, read back from the device, and compared by
// digest.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>

#include "fs/views/views.h"
#include "io/fd.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

// The files that a view is made from, opened when they are first read. Suspect files are refused.
class ViewSources {
 public:
  ViewSources(meta::Store& store, const views::StepView& view) : store_(store), view_(view) {}

  Result<int> descriptor(uint32_t file);
  Result<size_t> read(uint32_t file, std::span<std::byte> buffer, uint64_t offset);
  // Did a write-back of one of the files fail? To be asked once all was read.
  Result<> check_write_back();

 private:
  static constexpr size_t kMostOpen = 64;

  meta::Store& store_;
  const views::StepView& view_;
  std::unordered_map<uint32_t, io::Fd> open_;
};

// Called after each chunk with the time that it took; false ends the work (ECANCELED).
using KeepPause = std::function<bool(std::chrono::nanoseconds)>;

// Fills the empty blob with the content. `time`: of its last change. Returns the digest of the content in hexadecimal,
// as `ckptfs verify` would take it (meta/care/digests.h). ENOSPC, in words: there is no room for it. EIO: the device
// does not hold what was written.
Result<std::string> keep_content(const meta::Store& store, const views::Content& content, ViewSources& sources,
                                 meta::BlobNumber blob, const timespec& time, const KeepPause& pause);

}  // namespace ckptfs::fs
