// Whether a step is complete, in a word and a reason; and what the files on one machine tell of that, when other files
// of the step lie on other machines. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
inline CompletenessJudgement lacking(std::string_view file) {
  return {Completeness::incomplete, std::string(file) + " is not there"};
}

// A file that other files demand, with the lengths that it may have.
struct MissingFile {
  std::string path;  // relative to the step
  uint64_t least = 0;
  uint64_t most = UINT64_MAX;
  bool operator==(const MissingFile&) const = default;
};

// More missing files are not kept. A step of 65,000 ranks has two files of each.
inline constexpr size_t kMostMissing = size_t{1} << 17;

// What the files on one machine tell of a step.
struct ShareCheck {
  std::vector<MissingFile> missing;  // demanded by files here, and not here
  std::string broken;                // why the step is incomplete, whatever other machines have; empty: it is not
  std::string unclear;               // why it cannot be decided whether it is; empty: it can

  void add_missing(MissingFile file) {
    if (missing.size() == kMostMissing) return add_unclear("it demands more files than are looked for");
    missing.push_back(std::move(file));
  }
  // The first reason stays.
  void add_broken(const std::string& reason) {
    if (broken.empty()) broken = reason;
  }
  void add_unclear(const std::string& reason) {
    if (unclear.empty()) unclear = reason;
  }
  bool operator==(const ShareCheck&) const = default;
};

// A missing part outweighs one that cannot be read. `whole`: what the step is if nothing is wrong.
inline CompletenessJudgement judgement_of(const ShareCheck& share, Completeness whole = Completeness::complete) {
  if (!share.broken.empty()) return {Completeness::incomplete, share.broken};
  if (!share.missing.empty()) return lacking(share.missing.front().path);
  if (!share.unclear.empty()) return {Completeness::unknown, share.unclear};
  return {whole, {}};
}

}  // namespace ckptfs::meta::formats
