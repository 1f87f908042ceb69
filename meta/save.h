// Save: a point-in-time clone of the live swap files into a step.
#pragma once

#include <string>
#include <vector>

#include "meta/access.h"
#include "meta/store.h"

namespace ckptfs::meta {

struct SaveRequest {
  InodeNumber series = 0;
  std::string tag;
  Caller caller;
  std::vector<uint32_t> groups{};  // the caller's supplementary ones

  Credentials who() const { return {caller.uid, caller.gid, groups}; }
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
// ENOSPC (the store could not take what would be owed afterwards), EACCES. A save that fails leaves nothing.
//
// The caller must be able to reach the source by its path, read its folders, and read and write each file that is
// taken: write, since the next overwrite of a file that was saved needs new blocks. To the series and to a step that is
// there already the caller must be able to write.
Result<SaveResult> save(Store& store, const SaveRequest& request);

// What was asked for cannot be (no such source, a tag that is taken, ...): nothing is wrong with the store.
bool is_refusal(const Error& error);

}  // namespace ckptfs::meta
