// Which files a save takes from a zero_stage_N folder, and where in the step they go. Reads the tree only.
//   - optimizer/rank{R}/* goes to offloaded_tensors/rank{RR}/*: all but gradients, as DeepSpeed copies;
//   - {float16,bfloat16,...}params/rank{R}/* goes to offloaded_params/rank{RR}/*, likewise.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "meta/names.h"
#include "meta/tree/access.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

struct PlannedFile {
  InodeNumber source = 0;
  std::string group;   // kTensorsName or kParamsName
  std::string folder;  // "rank00"
  std::string name;
  InodeRecord record;
  uint64_t newest_writer = 0;  // of its rank folder: when the newest process that wrote there began
};

struct SavePlan {
  uint64_t version = 0;                     // of the tree (Tree::version), before any of it was read
  std::vector<PlannedFile> files;           // sorted by group, folder, name; the parameter folders of two dtypes can
                                            // hold the same name: then it is there twice,
                                            // and choose_between_dtypes() in save.cc takes the later
  std::unordered_set<InodeNumber> guarded;  // folders and files: what the gate closes for
};

// Asks the index only. What goes meanwhile, where no gate is closed, is left out. EACCES: `who` may not read one of the
// folders, or not read and write one of the files.
Result<SavePlan> plan_save(Tree& tree, InodeNumber source, const Credentials& who);

}  // namespace ckptfs::meta
