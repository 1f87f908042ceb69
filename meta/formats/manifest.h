// The manifest "ckptfs.rank00.json" names the files of one rank. Each rank that saves a step through libckptfs
// (gpu/step_save.h) leaves one. A step is complete when the manifests of all ranks of one attempt are there, and each
// file that they name is there with its length.
//
// Format: {"format": 1, "attempt": "5f3a...", "rank": 0, "world_size": 2, "files": [{"name": ..., "size": ...,
//            "chunk": 1048576, "digests": ["5e0c...", ...]}],
//          "timing": {"begun": 1700000000.25, "durable": ..., "host": "node3", "stages": {"copy": 0.5, ...}}}
// `timing` may be missing. How long a rank waited for the others follows from all manifests: the latest `durable` minus
// its own. `chunk` and `digests` may be missing, both; else there is a digest for each chunk of the file.
//
// Thread safety: stateless.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/digest.h"
#include "io/result.h"
#include "meta/formats/completeness_judgement.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

inline constexpr uint64_t kMostManifest = uint64_t{16} << 20;  // bytes

inline constexpr unsigned kLargestWorld = 1U << 20;  // ranks

// When a rank saved, and how long its stages took.
struct SaveTiming {
  double begun = 0;                      // seconds since 1970, by the rank's clock
  double durable = 0;                    // likewise: all of the rank's files were on the disk
  std::string host;                      // the machine's name
  std::map<std::string, double> stages;  // seconds by stage: "plan", "collective", "copy", "write", "sync"
};
inline constexpr size_t kMostStages = 32;
// Is it the name of a stage: 1 to 32 lower-case letters, digits or underscores?
bool is_stage_name(std::string_view name);

// What a file holds: the digest of each of its chunks, in order. The last chunk ends with the file.
struct FileDigests {
  uint64_t chunk = 0;  // bytes: a power of two, at least kLeastChunk
  std::vector<io::Digest> digests;
};
inline constexpr uint64_t kLeastChunk = 4096;
// The number of chunks of a file of `size` bytes.
constexpr uint64_t chunks_of(uint64_t size, uint64_t chunk) { return size / chunk + (size % chunk != 0 ? 1 : 0); }

struct RankManifest {
  std::string attempt;  // the same on all ranks, and different for each attempt to save the step
  unsigned rank = 0;
  unsigned world_size = 1;
  std::vector<StepFiles::File> files;  // paths below the step
  std::optional<SaveTiming> timing = {};
  std::map<std::string, FileDigests> digests = {};  // by path: of the files whose digests are known
};

std::string manifest_name(unsigned rank);
// Returns the rank whose manifest has this name, or nothing if it is not a manifest's name.
std::optional<unsigned> rank_of_manifest(std::string_view name);
inline bool is_manifest_name(std::string_view name) { return rank_of_manifest(name).has_value(); }

std::string manifest_text(const RankManifest& manifest);
// Fails with EBADMSG or EFBIG, in words.
Result<RankManifest> parse_manifest(const std::string& text);

// How long the ranks took to save a step, those that tell, or to load one.
struct RankTimes {
  unsigned slowest = 0;                   // the rank that was durable last, or took longest for its own part
  std::string host;                       // its machine
  double seconds = 0;                     // from the first rank's beginning until the last one was durable, or done
  std::map<std::string, double> longest;  // seconds that a stage took at most, by stage
};
// Checks what a client tells. Fails with EINVAL and names what cannot be.
Result<> check_times(const RankTimes& times);

// The number of ranks of the attempt that made the step, as the manifest of rank 0 says. Nothing if it cannot be read.
std::optional<unsigned> world_size_of(const StepFiles& files);

// The ranks whose manifest, or a file named in it, is not there or is wrong. `world_size` is the number of ranks that
// there should be; without it the manifests' own number counts.
struct Attendance {
  std::vector<unsigned> missing;
  std::string reason;                   // for the first missing rank; or that no manifest can be read
  std::optional<RankTimes> times = {};  // if any manifest has its timing
  ShareCheck share = {};                // as if other machines had the ranks and files that are not here
  bool complete() const { return missing.empty() && reason.empty(); }
};
Attendance check_manifests(const StepFiles& files, std::optional<unsigned> world_size = std::nullopt);

}  // namespace ckptfs::meta::formats
