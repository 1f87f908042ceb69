// Digests: what a blob held when it was read, 1 MiB by 1 MiB (the table `digests`), so that it can be told later
// whether it still does (verify), and what two files have in common without reading them (meta/sharing,
// meta/step_diff).
//
// The rule: digests are recorded only of what nobody could write to while it was read. A frozen blob is never written.
// A live file carries the flag kDigested from before the first read on; every open for writing and every truncate
// clears it, and digests are recorded, and believed later, only while it is set. A writer that was there before shows
// as an open or to the lease probe.
//
// So a file whose flag stands and whose bytes differ is *damaged*, whatever its times say. One whose flag is gone has
// *changed*. After a crash a file whose size or mtime is not that of its digests has changed, too.
//
// Thread safety: all of it. No lock is held while anything is read.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/extents.h"
#include "meta/store/store.h"

namespace ckptfs::meta {

// Called after each chunk with the time that reading it took; false ends the work.
using Pause = std::function<bool(std::chrono::nanoseconds)>;

enum class Taking {
  taken,
  postponed,  // somebody writes to it, or did meanwhile, or it has gone
  stopped,    // by the pause
  too_long,   // longer than the disk: holes, mostly, whose digests alone would fill the memory
};
// Makes the file's content durable, reads it (from memory where it is there, else past the page cache) and records its
// digests.
Result<Taking> take_digests(Store& store, InodeNumber file, const Pause& pause);

// Whether a blob still holds what its digests say, as far as is known.
bool are_current(const InodeRecord& file, const BlobDigest& digest);

// All digests of a blob, in the order of its chunks.
Result<std::vector<io::Digest>> digests_of(const Index& index, BlobNumber blob, const BlobDigest& digest);

enum class Verdict {
  ok,
  damaged,
  changed,     // written since its digests were taken
  undigested,  // none were taken yet
};
const char* name_of(Verdict verdict);

struct Verified {
  Verdict verdict = Verdict::ok;  // of what was read
  std::vector<io::Range> damaged;
  uint64_t bytes = 0;  // read
  uint64_t next = 0;   // chunk to go on from; past the last: done
  bool done = false;
};
// Reads the file from the disk, from chunk `from` on until `pause` says stop, and compares. Damage is logged with the
// paths of all files that name the blob, and recorded; a whole reading without damage takes such a record back.
Result<Verified> verify(Store& store, InodeNumber file, uint64_t from, const Pause& pause);

// Takes what the disk holds of a file whose write-back failed for its content, once all of it could be read. EBUSY
// while somebody maps it, and so sees something else. Nothing to do for other files: false.
Result<bool> accept_from_disk(Store& store, InodeNumber file);

// The same as verify() without reading: as its digests were left by who read it last.
Result<Verdict> known_verdict(const Store& store, InodeNumber file);

// A path of each file that names the blob (of a hard link: where it was made or last renamed).
Result<std::vector<std::string>> paths_of_blob(const Store& store, BlobNumber blob);

}  // namespace ckptfs::meta
