// Which files a save takes from a zero_stage_N folder, and where in the step they go. Reads the tree only.
//   optimizer/rank{R}/*                       -> offloaded_tensors/rank{RR}/*   (all but gradients, as DeepSpeed
//   copies) {float16,bfloat16,...}params/rank{R}/*    -> offloaded_params/rank{RR}/*
#pragma once

#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "meta/tree.h"

namespace ckptfs::meta {

inline constexpr const char* kTensorsName = "offloaded_tensors";
inline constexpr const char* kParamsName = "offloaded_params";

struct PlannedFile {
  InodeNumber source = 0;
  std::string group;   // kTensorsName or kParamsName
  std::string folder;  // "rank00"
  std::string name;
  InodeRecord record;
  uint64_t size = 0;  // of the live file, as mtime and stale: only where the plan asked the blobs
  timespec mtime{};
  bool stale = false;  // not written since the newest writer process of its rank folder began
};

struct SavePlan {
  std::vector<PlannedFile> files;           // sorted by group, folder, name
  std::unordered_set<InodeNumber> guarded;  // folders and files: what the gate closes for
  std::vector<std::string> warnings;
};

// ask_blobs: also sizes and times, a system call a file; without it a file that two dtypes have is taken from either.
Result<SavePlan> plan_save(const Tree& tree, InodeNumber source, bool ask_blobs);

}  // namespace ckptfs::meta
