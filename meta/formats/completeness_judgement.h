// Whether a step is complete, in a word and a reason. Plain data.
#pragma once

#include <string>

namespace ckptfs::meta::formats {

// unknown: it cannot be decided. Rules neither count nor remove such a step. weights: all files of a thinned step are
// there (meta/formats/thinning.h), so it can be read, but no training can resume from it.
enum class Completeness { complete, incomplete, unknown, weights };

// Is nothing missing of what the step is to hold?
inline bool is_whole(Completeness one) { return one == Completeness::complete || one == Completeness::weights; }

struct CompletenessJudgement {
  Completeness completeness = Completeness::unknown;
  std::string reason;  // why it is not complete: the first missing part, or what cannot be decided
  bool operator==(const CompletenessJudgement&) const = default;
};

}  // namespace ckptfs::meta::formats
