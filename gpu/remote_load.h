// Loads ranges of a remote step's files into the caller's memory, on a device or not. The ranges are planned as reads
// of whole chunks (read_plan.h), each of up to 16 MiB, and each chunk is in one read. Several of them are fetched at a
// time.
//
// A read that is of one target in host memory goes straight there. Any other goes through the ChunkReader, whose memory
// may have some of its chunks already, as those with the headers of files; what a device gets of it is copied through
// the ring. So a load takes the reader's memory and the ring's.
//
// Thread safety: any thread. Loads that use one ring run one after the other.
#pragma once

#include <vector>

#include "gpu/load.h"
#include "gpu/read_plan.h"
#include "gpu/staging.h"
#include "gpu/step_source.h"
#include "io/result.h"
#include "meta/remote/chunk_reader.h"
#include "meta/remote/remote_files.h"

namespace ckptfs::gpu {

struct RemoteInput {
  meta::remote::ChunkReader& reader;
  const meta::remote::RemoteFiles& files;
  RemoteWait wait;
};

// As load() of load.h. LoadReport::read has what was fetched for this load, and all of that was compared. EIO, naming
// tensors, file, chunk and object: what came is not what was pushed. Nothing is written to a target before the work
// that is on `stream` now has ended.
Result<LoadReport> load_remote(const RemoteInput& input, Staging& staging, std::vector<Wanted> wanted, Stream stream);

}  // namespace ckptfs::gpu
