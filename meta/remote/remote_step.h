// A committed step, read from its remote. Reading is thread-safe; a chunk is compared with its digest before anybody
// sees a byte of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/part.h"
#include "meta/remote/union.h"

namespace ckptfs::meta::remote {

class RemoteStep {
 public:
  // Fetches the commit and its parts into nameless files in `folder`, and checks their digests. `limits`:
  // of each request. `parallel`: parts at a time.
  static Result<RemoteStep> open(io::ObjectStore& store, const CommittedStep& step, const std::string& folder,
                                 const io::RequestLimits& limits, unsigned parallel = 8);

  io::ObjectStore& store() const { return *store_; }
  const CommittedStep& step() const { return step_; }
  const Commit& commit() const { return commit_; }
  const Part& part(uint32_t slot) const { return parts_[slot]; }
  uint32_t slots() const { return static_cast<uint32_t>(parts_.size()); }
  // Of all slots, or of one alone with its own paths.
  const Union& whole() const { return whole_; }
  Union of_slot(uint32_t slot) const;
  // The one or the other. EINVAL, in words: it has no such slot.
  Result<Union> files_of(std::optional<uint32_t> slot) const;
  const Entry& entry(const UnionEntry& one) const { return parts_[one.slot].entries()[one.index]; }
  // Of a file's object.
  std::string key_of(const UnionEntry& file) const { return parts_[file.slot].header().key_of(entry(file)); }

  // Fills the buffer with what the file holds from `offset` on; reads whole chunks, in ranges of at most 16 MiB.
  // EBADMSG, naming file, chunk and object: what came is not what was pushed, and was not when it was asked again.
  // EINVAL: the file ends before the buffer does. After an error the buffer's content is undefined.
  Result<> read(const UnionEntry& file, uint64_t offset, std::span<std::byte> buffer,
                const io::RequestLimits& limits) const;

 private:
  explicit RemoteStep(io::ObjectStore& store) : store_(&store) {}
  io::ObjectStore* store_;
  CommittedStep step_;
  Commit commit_;
  std::vector<Part> parts_;
  Union whole_;
};

struct ReadProgress {
  uint64_t bytes = 0;  // to read in all
  uint64_t done = 0;
  std::string file;
};
struct ReadSettings {
  std::chrono::milliseconds time{120'000};  // for each request
  unsigned parallel = 4;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const ReadProgress&)> progress = [](const auto&) {};  // from any thread
};

// Writes the step, or what one slot holds of it, as files to `folder`; it appears whole, and durable. EEXIST: it is
// there already. Times are kept, owners where the caller may set them, and modes, but no file gets the setuid or setgid
// bit. What a crash leaves is called ".ckptfs-<16 digits>.partial", beside it.
Result<> export_step(const RemoteStep& step, std::optional<uint32_t> slot, const std::string& folder,
                     const ReadSettings& settings);

struct VerifyReport {
  uint64_t chunks = 0;             // compared
  uint64_t bytes = 0;              // of them
  std::vector<std::string> wrong;  // in words: file, chunk, object, and what is wrong
};
// Is the object of each file there, in its whole length? Reads a share of the chunks of each part (1:
// all), chosen at random in runs of 16 MiB, and compares them with their digests. Of what is wrong the first 1000 are
// named.
Result<VerifyReport> verify_step(const RemoteStep& step, double share, const ReadSettings& settings);

}  // namespace ckptfs::meta::remote
