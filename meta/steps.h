// Steps as things: which there are, what makes a directory a step or a series, sealing (meta/seal.cc), pinning.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meta/store.h"

namespace ckptfs::meta {

struct StepInfo {
  InodeNumber inode = 0;
  std::string series;  // path of the series, "/steps"
  std::string tag;
  StepRecord record;
  timespec mtime{};
  std::string kind;  // "swap state only", "deepspeed", "hf", "dcp", "ckptfs", "other"
};

// True for a child directory of a series that save, seal or pin made a step, or that has a step's name and holds a
// recognised checkpoint file.
Result<bool> is_step(const Tree& tree, InodeNumber directory);
// Of one whose name is known: quicker.
Result<bool> is_step(const Tree& tree, InodeNumber directory, const std::string& name);
// `folder` now has `entry`. Where that makes it a step, its parent is a series from now on, unless that is the root or
// lies in a step.
Result<> note_entry(Tree& tree, InodeNumber folder, const DirectoryEntry& entry);
// A directory was given this name: as above.
Result<> note_directory(Tree& tree, InodeNumber directory);
struct FileCount {
  uint64_t files = 0;
  uint64_t bytes = 0;  // apparent
};
Result<FileCount> count_files(const Tree& tree, InodeNumber folder);
// Visits every regular file below a folder; `path`: the names from there down, the file's own last.
using VisitFile = std::function<Result<>(const std::vector<std::string>& path, InodeNumber file)>;
Result<> for_each_file(const Tree& tree, InodeNumber folder, const VisitFile& visit);
// Is the directory a step of a series, or below one?
Result<bool> is_in_step(const Tree& tree, InodeNumber directory);
// EINVAL, in words: the root, a zero_stage_N folder and what lies in a step cannot be a series.
Result<> check_series(const Tree& tree, InodeNumber directory);
// Every series of the mount.
Result<std::vector<InodeNumber>> list_series(const Tree& tree);
// All steps of one series, or of every series (series = 0), sorted by series, then by step number and tag.
Result<std::vector<StepInfo>> list_steps(Store& store, InodeNumber series = 0);
Result<StepInfo> step_info(Store& store, InodeNumber step);

// The number of a step: what its name carries, else what it was given when it was made (StepRecord::number); 0: none.
uint64_t number_of(const std::string& tag, const StepRecord& record);
// The number to be given to a step of that name, in its record.
Result<uint64_t> allot_number(const Store& store, InodeNumber series, const std::string& tag, const StepRecord& record);

// Makes a step read-only for good. EBUSY while a writer is open in it, naming the file; EINVAL for what is no step.
// Durable on return.
Result<> seal(Store& store, InodeNumber step);
Result<> set_pinned(Store& store, InodeNumber step, bool pinned);

}  // namespace ckptfs::meta
