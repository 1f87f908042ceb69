// What the files on one machine tell of a step whose other files lie on other machines. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ckptfs::meta::formats {

// A file that other files demand, with the lengths that it may have.
struct MissingFile {
  std::string path;  // relative to the step
  uint64_t least = 0;
  uint64_t most = UINT64_MAX;
  bool operator==(const MissingFile&) const = default;
};

// More missing files are not kept. A step of 65,000 ranks has two files of each.
inline constexpr size_t kMostMissing = size_t{1} << 17;

struct ShareCheck {
  std::vector<MissingFile> missing;  // demanded by files here, and not here
  std::string broken;                // why the step is incomplete, whatever other machines have; empty: it is not
  std::string unclear;               // why it cannot be decided whether it is; empty: it can

  void add_missing(MissingFile file);
  // The first reason stays.
  void add_broken(const std::string& reason);
  void add_unclear(const std::string& reason);
  bool operator==(const ShareCheck&) const = default;
};

}  // namespace ckptfs::meta::formats
