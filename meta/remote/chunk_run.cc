#include "meta/remote/chunk_run.h"

#include <fmt/format.h>

#include <cerrno>
#include <string>

#include "io/printable.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {
namespace {

struct RunSource {
  io::ObjectStore& store;
  std::string key;
  std::string_view file;
  const io::RequestLimits& limits;
};

Result<> read_again(const RunSource& source, const Chunk& chunk, uint64_t number, std::span<std::byte> buffer) {
  TRY_ASSIGN(const size_t got, source.store.get(source.key, chunk.offset, buffer, source.limits));
  if (got == buffer.size() && io::digest_of(buffer) == chunk.digest) return success();
  const std::string what = got < buffer.size() ? "ends before it" : "holds something else than was pushed";
  return Error(EBADMSG, fmt::format("{}: chunk {}: {}/{} {} (at byte {}, asked twice)", io::printable(source.file),
                                    number, source.store.url(), io::printable(source.key), what, chunk.offset));
}

}  // namespace

ChunkRun next_run(std::span<const Chunk> chunks, uint64_t first) {
  const Chunk& begin = chunks.front();
  uint32_t bytes = begin.length;
  size_t count = 1;
  for (; count < chunks.size(); ++count) {
    const Chunk& next = chunks[count];
    const bool follows = next.push == begin.push && next.pack == begin.pack && next.offset == begin.offset + bytes;
    if (!follows || bytes + next.length > kMostRunBytes) break;
    bytes += next.length;
  }
  return {chunks.first(count), first, bytes};
}

Result<> read_run(io::ObjectStore& store, const PartHeader& header, std::string_view file, const ChunkRun& run,
                  std::span<std::byte> buffer, const io::RequestLimits& limits) {
  const Chunk& begin = run.chunks.front();
  const RunSource source{store, pack_key(header.pushes[begin.push].push, begin.pack), file, limits};
  TRY_ASSIGN(const size_t got, store.get(source.key, begin.offset, buffer, limits));
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
