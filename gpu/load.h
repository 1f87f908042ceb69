// Load: ranges of files into memory that the caller owns, on a device or not. Reads are planned (read_plan.h) and
// spread over the lanes of the ring; what is read for a device goes through a slot, what is for host memory that
// happens to lie as the disk wants it is read straight there, and is copied from a slot where it does not.
//
// A file that is mostly in the page cache is read from there, any other past it (O_DIRECT).
//
// Thread safety: any thread; loads of one ring take turns.
#pragma once

#include <string>
#include <vector>

#include "gpu/read_plan.h"
#include "gpu/staging.h"
#include "io/fd.h"

namespace ckptfs::gpu {

// How a file's bytes are asked for.
struct SourceFile {
  std::string path;  // for messages
  int fd = -1;       // the caller's
  uint64_t size = 0;
  bool direct = false;          // O_DIRECT is set
  size_t memory_alignment = 1;  // of what is read straight into the caller's memory
};

// Chooses how a descriptor for reading is read: sets O_DIRECT on it, or takes it away.
Result<SourceFile> make_source(std::string path, int fd);

struct LoadReport {
  uint64_t bytes = 0;     // that were wanted
  uint64_t read = 0;      // from files, with what lay between
  uint64_t direct = 0;    // of these, past the page cache
  uint64_t straight = 0;  // of these, without a copy in host memory
};

// Returns when all of it is there, or with the first error (EIO: a file ends before what is wanted of it): then the
// targets may hold anything. `stream`: the caller's, on which the targets were last used; they are not written to
// before what is on it now has ended.
Result<LoadReport> load(Staging& staging, const std::vector<SourceFile>& files, std::vector<Wanted> wanted,
                        Stream stream);

}  // namespace ckptfs::gpu
