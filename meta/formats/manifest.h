// What each rank leaves with a step that it saved through us (gpu/step_save.h): "ckptfs.rank00.json", which names the
// rank's files. A step is whole when the manifests of all ranks of one attempt are there, and each file that they name,
// with its length.
//
// Format: {"format": 1, "attempt": "5f3a...", "rank": 0, "world_size": 2, "files": [{"name": ..., "size": ...}]}
//
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/result.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

inline constexpr uint64_t kMostManifest = uint64_t{16} << 20;  // bytes

inline constexpr unsigned kLargestWorld = 1U << 20;  // ranks

struct RankManifest {
  std::string attempt;  // the same of all ranks, and another one each time somebody tries to save a step
  unsigned rank = 0;
  unsigned world_size = 1;
  std::vector<StepFiles::File> files;  // paths below the step
};

std::string manifest_name(unsigned rank);
// Whose it is, by its name; none: no manifest's.
std::optional<unsigned> rank_of_manifest(std::string_view name);
inline bool is_manifest_name(std::string_view name) { return rank_of_manifest(name).has_value(); }

std::string manifest_text(const RankManifest& manifest);
// EBADMSG, EFBIG, in words.
Result<RankManifest> parse_manifest(const std::string& text);

// The ranks whose manifests are not there, or whose files are not, as they say; empty: all is there. `world_size`: how
// many ranks there are to be; none: as the manifests say.
struct Attendance {
  std::vector<unsigned> missing;
  std::string reason;  // for the first of them; for no rank in particular where there is nothing to go by
  bool complete() const { return missing.empty() && reason.empty(); }
};
Attendance check_manifests(const StepFiles& files, std::optional<unsigned> world_size = std::nullopt);

}  // namespace ckptfs::meta::formats
