// Loads ranges of files into the caller's memory, on a device or not. The reads are planned (read_plan.h) and
// distributed over the lanes of the ring. Data for a device goes through a slot. Data for host memory is read directly
// into that memory if its alignment allows it, and else is copied from a slot.
//
// Of a file whose digests are known, each chunk that a read holds whole is checked before the load returns
// (check_read.h).
//
// A file of which at least half is in the page cache is read from there. Any other file is read past it (O_DIRECT).
//
// Thread safety: any thread. Loads that use one ring run one after the other.
#pragma once

#include <string>
#include <vector>

#include "gpu/read_plan.h"
#include "gpu/source_file.h"
#include "gpu/staging.h"

namespace ckptfs::gpu {

// Decides how a descriptor is read, and sets or clears O_DIRECT on it.
Result<SourceFile> make_source(std::string path, int fd);

// Which memory each range goes to.
Result<std::vector<MemoryKind>> kinds_of(Device& device, const std::vector<Wanted>& wanted);

struct LoadReport {
  uint64_t bytes = 0;     // requested
  uint64_t read = 0;      // read from files, including the gaps between ranges
  uint64_t direct = 0;    // of those, read past the page cache
  uint64_t straight = 0;  // of those, read without a copy in host memory
  uint64_t checked = 0;   // of those, compared with their digests
};

// Returns when everything is loaded, or with the first error; then the targets' content is undefined. A file that ends
// before the end of a wanted range is EIO, and so is a chunk that differs from its digest. `stream` is the stream on
// which the caller last used the targets: they are not written before the work that is on it now has ended.
Result<LoadReport> load(Staging& staging, const std::vector<SourceFile>& files, std::vector<Wanted> wanted,
                        Stream stream);

}  // namespace ckptfs::gpu
