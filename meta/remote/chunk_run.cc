#include "meta/remote/chunk_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "io/printable.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {
namespace {

struct RunSource {
  io::ObjectStore& store;
  const std::string& key;
  std::string_view file;
  const io::RequestLimits& limits;
};

Result<> read_again(const RunSource& source, const Chunk& chunk, uint64_t number, std::span<std::byte> buffer) {
  const uint64_t offset = number * kChunkBytes;
  TRY_ASSIGN(const size_t got, source.store.get(source.key, offset, buffer, source.limits));
  if (got == buffer.size() && io::digest_of(buffer) == chunk.digest) return success();
  const std::string what = got < buffer.size() ? "ends before it" : "holds something else than was pushed";
  return Error(EBADMSG, fmt::format("{}: chunk {}: {}/{} {} (at byte {}, asked twice)", io::printable(source.file),
                                    number, source.store.url(), io::printable(source.key), what, offset));
}

}  // namespace

ChunkRun next_run(std::span<const Chunk> chunks, uint64_t first) {
  const auto run = chunks.first(std::min<size_t>(chunks.size(), kMostRunBytes / kChunkBytes));
  uint32_t bytes = 0;
  for (const Chunk& chunk : run) bytes += chunk.length;
  return {run, first, bytes};
}

Result<> read_run(io::ObjectStore& store, const std::string& key, std::string_view file, const ChunkRun& run,
                  std::span<std::byte> buffer, const io::RequestLimits& limits) {
  const RunSource source{store, key, file, limits};
  TRY_ASSIGN(const size_t got, store.get(key, run.first * kChunkBytes, buffer, limits));
  size_t at = 0;
  for (size_t i = 0; i < run.chunks.size(); ++i) {
    const Chunk& chunk = run.chunks[i];
    const auto bytes = buffer.subspan(at, chunk.length);
    at += chunk.length;
    if (at <= got && io::digest_of(bytes) == chunk.digest) continue;
    TRY(read_again(source, chunk, run.first + i, bytes));
  }
  return success();
}

}  // namespace ckptfs::meta::remote
