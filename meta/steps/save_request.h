// What a save is asked for, and what it tells.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meta/tree/access.h"
#include "meta/types.h"

namespace ckptfs::meta {

struct SaveRequest {
  InodeNumber series = 0;
  std::string tag;
  Caller caller;
  std::vector<uint32_t> groups{};  // the caller's supplementary ones

  Credentials who() const { return {caller.uid, caller.gid, groups}; }
};

struct SaveResult {
  InodeNumber step = 0;
  uint64_t files = 0;
  uint64_t cloned = 0;  // the others named the blob they were last saved as
  uint64_t bytes = 0;   // apparent
  double seconds = 0;
  bool already_saved = false;         // the tag was saved before and nothing had changed since
  std::vector<std::string> warnings;  // perhaps stale files, names taken twice, ...
};

}  // namespace ckptfs::meta
