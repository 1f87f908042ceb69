// Pushes one slot's part of a step: its files, as they are, then the part. What follows is in decide.h.
//
//   1. If the slot has a part of these files that stands or can still be committed, nothing is sent: it is the part.
//   2. An object says that the push has begun, and again each day that it goes on (push_key()).
//   3. The store itself copies the files that are at the same path, as they are here, in the newest standing commit, or
//      in what an interrupted try of this slot has sent (push_journal.h). What it does not copy is sent.
//   4. Large files go out in pieces, a few at a time, and appear when all pieces are there. Then the small ones, and at
//      last those that say that a model is there (comes_last()). Each chunk is compared with its digest while it is
//      read. What has arrived is journalled.
//   5. A slot other than 0 looks for the part of slot 0 that is of the same save (slot_parts.h), and waits for it.
//   6. The part is put, if the image still is current.
//
// After a failure the next call goes on from the journal. Thread safety: one call for a tag at a time.
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
#include "meta/remote/server_time.h"
#include "meta/remote/slot_parts.h"
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
  uint64_t bytes = 0;   // of the step here
  uint64_t copied = 0;  // need not be sent: they are there, or were copied there
  uint64_t sent = 0;
  std::string object;  // that was sent last
};

struct PushSettings {
  std::string folder;            // of nameless files, on a local disk
  unsigned parallel = 4;         // pieces, or copies, on their way at a time
  unsigned parallel_small = 16;  // files that go by one put, likewise
  uint64_t piece_bytes =
      uint64_t{64} << 20;  // a larger file goes in pieces of this; of very large ones they are larger
  bool again = false;      // also if a commit has it as it is
  UploadLimit* limit = nullptr;
  std::chrono::milliseconds time{120'000};       // for each request but those that send or copy files
  std::chrono::milliseconds file_time{900'000};  // for those, with all their tries
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const PushProgress&)> progress = [](const auto&) {};  // from any thread
  std::function<std::string()> id = new_id;
  std::function<Time()> clock = std::chrono::system_clock::now;
};

struct PushedPart {
  PartName name;
  DecisionName decision;  // that it goes with
  uint64_t sent = 0;      // bytes of files
  uint64_t copied = 0;    // likewise
  // The files are there, and the part is not: no part of slot 0 is of the same save yet. In words; empty: it is there.
  std::string waits;
};

// As PartHeader::saved.
Result<io::Digest> saved_of(const StepImage& image);

// Has slot 0 a part of this save about which nothing is decided?
Result<bool> is_awaited(io::ObjectStore& store, const Slot& slot, const StepImage& image, KnownParts& known,
                        const PushSettings& settings);

// ESTALE: the image is no longer current; take a new one. EBADMSG, naming the file: the disk holds something else than
// its digest says. EAGAIN: the collector has ended this push, or an upload of it; the next call begins a new one. Else
// an error of the store, that names the object.
Result<PushedPart> push_part(io::ObjectStore& store, const Slot& slot, const StepImage& image, PushJournal& journal,
                             KnownParts& known, const PushSettings& settings);

}  // namespace ckptfs::meta::remote
