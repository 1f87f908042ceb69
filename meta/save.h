// Save: a point-in-time clone of the live swap files into a step (design section 6).
#pragma once

#include <string>
#include <vector>

#include "meta/store.h"

namespace ckptfs::meta {

struct SaveRequest {
  InodeNumber series = 0;
  std::string tag;
  Caller caller;
};

struct SaveResult {
  InodeNumber step = 0;
  uint64_t files = 0;
  uint64_t cloned = 0;  // the others named the blob they were last saved as
  uint64_t bytes = 0;   // apparent
  double seconds = 0;
  bool already_saved = false;         // the tag was saved before and nothing had changed since
  std::vector<std::string> warnings;  // perhaps stale files, names taken twice, ...
};

// Returns when the step is durable. Blocks for as long as that takes: call it on a thread of its own. One save at a
// time (a second waits). Errors carry words: EINVAL (tag, several sources), ENOENT (no source), EEXIST, EPERM (sealed),
// ENOSPC (the store could not take what would be owed afterwards). A save that fails leaves nothing.
Result<SaveResult> save(Store& store, const SaveRequest& request);

// What was asked for cannot be (no such source, a tag that is taken, ...): nothing is wrong with the store.
bool is_refusal(const Error& error);

// The zero_stage_N folder that saves into `series` take: its `source`, else the only one of the mount.
Result<InodeNumber> save_source(Store& store, InodeNumber series);
// Every zero_stage_N folder of the mount.
Result<std::vector<InodeNumber>> list_swap_folders(const Tree& tree);
// Makes the directory a series (not the root, a zero_stage_N, or what lies in a step: EINVAL) and sets its source.
Result<> set_source(Store& store, InodeNumber series, InodeNumber source);

}  // namespace ckptfs::meta
