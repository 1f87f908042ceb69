// Reads chunks of files in a remote, and compares each with its digest. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/part_format.h"

namespace ckptfs::meta::remote {

inline constexpr size_t kMostRunBytes = size_t{16} << 20;  // of one request

// Chunks that follow one another in a file.
struct ChunkRun {
  std::span<const Chunk> chunks;
  uint64_t first = 0;  // its number in the file
  uint32_t bytes = 0;
};

// The run that the chunks begin with. `first`: the number of the first one in the file.
ChunkRun next_run(std::span<const Chunk> chunks, uint64_t first);

// Fills the buffer, which is as long as the run. What differs from its digest is asked for once more. EBADMSG, naming
// file, chunk and object: it still differs. `key`: of the file's object; `file`: for messages.
Result<> read_run(io::ObjectStore& store, const std::string& key, std::string_view file, const ChunkRun& run,
                  std::span<std::byte> buffer, const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
