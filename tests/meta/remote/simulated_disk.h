// What the mounts of a simulation have on their disks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/digest.h"
#include "meta/remote/part_format.h"

namespace ckptfs::meta::remote::testing {

using Files = std::map<std::string, std::string>;  // path -> content

struct DiskStep {
  Files files;
  std::string attempt;                      // the agreed id; empty: there is none
  uint64_t order = 0;                       // of its save
  uint64_t began = 0, first = 0, last = 0;  // when its writer began, and wrote
  uint64_t version = 0;                     // grows whenever something is opened for writing, comes or goes
  bool quiet = true;
};

std::vector<Entry> entries_of(const Files& files);
io::Digest digest_of_text(const std::string& text);
// As PartHeader::content.
io::Digest content_of_files(const Files& files);

}  // namespace ckptfs::meta::remote::testing
