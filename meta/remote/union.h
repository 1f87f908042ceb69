// The union of the parts of all slots: the step as it is shown. Stateless; any thread.
//
//   - A folder is there if any slot has it; the lowest slot's mode and owner count.
//   - Files that are equal in size and content count once.
//   - DeepSpeed with node-local storage names offloaded_tensors/rank00 (and offloaded_params) on each node by the rank
//     on that node. In a step of several slots the k-th such folder of a slot becomes the k-th rank of which the slot
//     has a zero_pp_rank file beside offloaded_tensors. Where the counts differ, there is no union.
//   - Of differing JSON, training_args.bin and mp_rank_*_model_states.pt the lowest slot's counts, and a note says so.
//   - Any other difference, or one name for a file and a folder: there is no union.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/result.h"
#include "meta/formats/completeness_facts.h"
#include "meta/remote/part.h"

namespace ckptfs::meta::remote {

struct UnionEntry {
  std::string path;   // in the union
  uint32_t slot = 0;  // whose it is
  size_t index = 0;   // in that part's entries
};

struct Union {
  std::vector<UnionEntry> entries;  // sorted by path
  std::vector<std::string> notes;   // in words, for status
};

// `parts`: of slots 0, 1, ... EEXIST, in words: what differs, and between which slots.
Result<Union> unite(const std::vector<const Part*>& parts);

// Are all files of the step there, by the facts of the parts? It is incomplete if two slots name different attempts; no
// mount pushes such parts. The paths that are judged are those of the union, with "" for the step itself.
formats::CompletenessJudgement judge_union(const std::vector<const Part*>& parts, const Union& whole);

}  // namespace ckptfs::meta::remote
