// Pushes one slot's part of a step: packs, then the part. What follows (votes, the commit) is in election.h.
//
//   1. If the slot's newest part of this tag has this content, nothing is sent: it is the part.
//   2. What the newest standing commit has at the same path and offset is borrowed from there. What an interrupted try
//      of this slot has sent (push_journal.h) is used.
//   3. The other chunks go out in packs, a few at a time. Each chunk is compared with its digest while it is read. Each
//      pack is journalled when it has arrived.
//   4. The part is put, if the image still is current.
//
// After a failure the next call goes on from the journal. The caller keeps the image and what was returned for it while
// the image is current: a part that is only found again costs the step a void (election.h). Thread safety: one call for
// a tag at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/push_journal.h"
#include "meta/remote/step_image.h"
#include "meta/remote/upload_limit.h"

namespace ckptfs::meta::remote {

// Who pushes.
struct Slot {
  uint32_t slot = 0;
  uint32_t slots = 1;
  std::string host;
  std::string mount;  // PartHeader::mount
};

struct PushProgress {
  uint64_t bytes = 0;     // of the step here
  uint64_t borrowed = 0;  // need not be sent, as far as is known
  uint64_t sent = 0;
  std::string object;  // that was sent last
};

struct PushSettings {
  std::string folder;                // of nameless files, on a local disk
  unsigned parallel = 4;             // packs on their way at a time
  uint64_t pack_bytes = kPackBytes;  // at most
  bool late = false;                 // a newer step of the series is committed already: CommittedStep::late
  UploadLimit* limit = nullptr;
  std::chrono::milliseconds time{120'000};       // for each request but those of packs
  std::chrono::milliseconds pack_time{900'000};  // for a pack, with all its tries
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const PushProgress&)> progress = [](const auto&) {};  // from any thread
  std::function<PushName(const std::string& tag, uint32_t slot)> name = new_push;
};

struct PushedPart {
  PartName name;
  uint64_t sent = 0;      // bytes of packs
  uint64_t borrowed = 0;  // bytes
  bool found = false;     // it was there before this image was made
  Lenders lenders;        // as in its header
};

// As PartHeader::content.
Result<io::Digest> content_of(const StepImage& image);

// ESTALE: the image is no longer current; take a new one. EBADMSG, naming the file: the disk holds something else than
// its digest says. EEXIST, naming both hosts: another mount pushes as this slot. EAGAIN: the collector has ended this
// push; the next call begins a new one. Else an error of the store, that names the object.
Result<PushedPart> push_part(io::ObjectStore& store, const Slot& slot, const StepImage& image, PushJournal& journal,
                             const PushSettings& settings);

}  // namespace ckptfs::meta::remote
