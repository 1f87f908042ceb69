// What a save is asked for, what it takes, and what it tells.
//
// Which zero_stage_N folder: save_source(). Which files of it, and where in the step they go: plan_save(), which reads
// the tree only.
//   - optimizer/rank{R}/* goes to offloaded_tensors/rank{RR}/*: all but gradients, as DeepSpeed copies;
//   - {float16,bfloat16,...}params/rank{R}/* goes to offloaded_params/rank{RR}/*, likewise.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "meta/names.h"
#include "meta/store/store.h"
#include "meta/tree/access.h"

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

// The zero_stage_N folder that saves into `series` take for `who`: its `source`, else the only one that belongs to
// `who`, else the only one of all that `who` may read and write to. Errors name no folder that `who` cannot reach.
Result<InodeNumber> save_source(Store& store, InodeNumber series, const Credentials& who);
// Makes the directory a series (not the root, a zero_stage_N, or what lies in a step: EINVAL) and sets its source.
// Whether its setter may use that source each save asks.
Result<> set_source(Store& store, InodeNumber series, InodeNumber source);

struct PlannedFile {
  InodeNumber source = 0;
  std::string group;   // kTensorsName or kParamsName
  std::string folder;  // "rank00"
  std::string name;
  InodeRecord record;
  uint64_t newest_writer = 0;  // of its rank folder: when the newest process that wrote there began
};

struct SavePlan {
  uint64_t version = 0;  // of the tree (Tree::version), before any of it was read
  // Sorted by group, folder, name. The parameter folders of two dtypes can hold the same name: then it is there twice,
  // and choose_between_dtypes() in save.cc takes the later.
  std::vector<PlannedFile> files;
  std::unordered_set<InodeNumber> guarded;  // folders and files: what the gate closes for
};

// Asks the index only. What goes meanwhile, where no gate is closed, is left out. EACCES: `who` may not read one of the
// folders, or not read and write one of the files.
Result<SavePlan> plan_save(Tree& tree, InodeNumber source, const Credentials& who);

}  // namespace ckptfs::meta
