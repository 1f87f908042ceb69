// Steps as things: which there are, what makes a directory a step or a series, sealing (meta/steps/seal.cc), pinning.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meta/store/store.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::meta {

struct StepInfo {
  InodeNumber inode = 0;
  std::string series;  // path of the series, "/steps"
  std::string tag;
  StepRecord record;
  timespec mtime{};
  std::string kind;  // checkpoint_kind
};

struct FileCount {
  uint64_t files = 0;
  uint64_t bytes = 0;  // apparent
};
Result<FileCount> count_files(const Tree& tree, InodeNumber folder);
// Visits every regular file below a folder; `path`: the names from there down, the file's own last.
using VisitFile = std::function<Result<>(const std::vector<std::string>& path, InodeNumber file)>;
Result<> for_each_file(const Tree& tree, InodeNumber folder, const VisitFile& visit);
// Is there a symlink in the folder, or anywhere below it? Of what lies deeper than any step: yes.
Result<bool> holds_symlink(const Tree& tree, InodeNumber folder, size_t depth = 0);
// All steps of one series, or of every series (series = 0), sorted by series, then by step number and tag.
Result<std::vector<StepInfo>> list_steps(Store& store, InodeNumber series = 0);

// The number of a step: what its name carries, else what it was given when it was made (StepRecord::number); 0: none.
uint64_t number_of(const std::string& tag, const StepRecord& record);
// The step's record, with the number that is to be given to a step of that name. Of one that has none, a new record.
Result<StepRecord> step_record(const Store& store, InodeNumber series, InodeNumber step, const std::string& tag);

Result<> set_pinned(Store& store, InodeNumber step, bool pinned);

}  // namespace ckptfs::meta
