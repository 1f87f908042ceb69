// What differs between two steps, told from shared blocks and digests; only what neither tells is read.
//
// How many bytes of a file changed is counted in the units that tell: blocks of the file system where files share them,
// chunks of 1 MiB where only digests differ, blocks of 4 KiB where data were compared. So it is an upper bound, and 0
// only for files that are equal.
//
// Thread safety: all of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "meta/care/digests.h"

namespace ckptfs::meta {

struct FilePair {
  std::string path;  // below the step
  std::optional<InodeNumber> first, second;
};
// The regular files of both steps, by path; sorted.
Result<std::vector<FilePair>> pair_files(const Tree& tree, InodeNumber first, InodeNumber second);

struct FileDiff {
  uint64_t changed = 0;  // bytes, of the longer file
  uint64_t read = 0;     // bytes of each file that had to be read
  uint64_t next = 0;     // offset to go on from
  bool done = false;
};
// From `from` on until `pause` says stop.
Result<FileDiff> diff_files(const Store& store, InodeNumber first, InodeNumber second, uint64_t from,
                            const Pause& pause);

}  // namespace ckptfs::meta
