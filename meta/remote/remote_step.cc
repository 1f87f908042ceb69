#include "meta/remote/remote_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "io/parallel.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kRangeBytes = size_t{16} << 20;  // of one request
constexpr unsigned kPartsAtOnce = 8;

// Chunks that lie one after the other in a pack, and in their file.
struct ChunkRun {
  std::span<const Chunk> chunks;
  uint64_t first = 0;  // its number in the file
  uint32_t bytes = 0;
};

// The run that the chunks begin with.
ChunkRun next_run(std::span<const Chunk> chunks, uint64_t first) {
  const Chunk& begin = chunks.front();
  uint32_t bytes = begin.length;
  size_t count = 1;
  for (; count < chunks.size(); ++count) {
    const Chunk& next = chunks[count];
    const bool follows = next.push == begin.push && next.pack == begin.pack && next.offset == begin.offset + bytes;
    if (!follows || bytes + next.length > kRangeBytes) break;
    bytes += next.length;
  }
  return {chunks.first(count), first, bytes};
}

// Reads chunks of one file.
class ChunkReader {
 public:
  ChunkReader(io::ObjectStore& store, const PartHeader& header, std::string_view file, const io::RequestLimits& limits)
      : store_(store), header_(header), file_(file), limits_(limits) {}

  // `buffer` has room for the run.
  Result<> read(const ChunkRun& run, std::span<std::byte> buffer) const {
    const std::string key = pack_key(header_.pushes[run.chunks.front().push].push, run.chunks.front().pack);
    TRY_ASSIGN(const size_t got, store_.get(key, run.chunks.front().offset, buffer, limits_));
    size_t at = 0;
    for (size_t i = 0; i < run.chunks.size(); ++i) {
      const Chunk& chunk = run.chunks[i];
      const auto bytes = buffer.subspan(at, chunk.length);
      at += chunk.length;
      if (at <= got && io::digest_of(bytes) == chunk.digest) continue;
      TRY(read_again(key, chunk, run.first + i, bytes));
    }
    return success();
  }

 private:
  Result<> read_again(const std::string& key, const Chunk& chunk, uint64_t number, std::span<std::byte> buffer) const {
    TRY_ASSIGN(const size_t got, store_.get(key, chunk.offset, buffer, limits_));
    if (got == buffer.size() && io::digest_of(buffer) == chunk.digest) return success();
    const std::string what = got < buffer.size() ? "ends before it" : "holds something else than was pushed";
    return Error(EBADMSG, fmt::format("{}: chunk {}: {}/{} {} (at byte {}, asked twice)", io::printable(file_), number,
                                      store_.url(), io::printable(key), what, chunk.offset));
  }

  io::ObjectStore& store_;
  const PartHeader& header_;
  std::string_view file_;
  const io::RequestLimits& limits_;
};

Result<> check_part(const Part& part, const PartName& name) {
  if (part.size() == name.size && part.header().number == name.number) return success();
  return Error(EBADMSG, part_key(name.push) + ": it has another size or number than the commit says");
}

}  // namespace

Result<RemoteStep> RemoteStep::open(io::ObjectStore& store, const CommittedStep& step, const std::string& folder,
                                    const io::RequestLimits& limits) {
  const auto began = std::chrono::steady_clock::now();
  RemoteStep opened(store);
  opened.step_ = step;
  TRY_ASSIGN(opened.commit_, fetch_commit(store, step.decision, limits));
  const PartList& names = opened.commit_.parts;
  std::vector<std::optional<Part>> parts(names.size());
  TRY(io::for_each_parallel(names.size(), kPartsAtOnce, [&](size_t slot) -> Result<> {
    TRY_ASSIGN(parts[slot], fetch_part(store, names[slot].push, names[slot].digest, folder, limits.renewed(began)));
    return check_part(*parts[slot], names[slot]);
  }));
  for (std::optional<Part>& part : parts) opened.parts_.push_back(std::move(*part));
  std::vector<const Part*> all;
  for (const Part& part : opened.parts_) all.push_back(&part);
  auto whole = unite(all);
  if (!whole) return error_in(store.url() + "/" + step_key(step.decision), whole.error());
  opened.whole_ = std::move(whole).value();
  return opened;
}

Union RemoteStep::of_slot(uint32_t slot) const {
  Union own;
  const std::vector<Entry>& entries = parts_[slot].entries();
  for (size_t index = 0; index < entries.size(); ++index) own.entries.push_back({entries[index].path, slot, index});
  return own;
}

Result<> RemoteStep::read(const UnionEntry& file, uint64_t offset, std::span<std::byte> buffer,
                          const io::RequestLimits& limits) const {
  const Entry& of_it = entry(file);
  if (offset > of_it.size || buffer.size() > of_it.size - offset) {
    return Error(EINVAL, io::printable(file.path) + ": it ends before what is to be read");
  }
  if (buffer.empty()) return success();
  const uint64_t first = offset / kChunkBytes, last = (offset + buffer.size() - 1) / kChunkBytes;
  TRY_ASSIGN(const std::vector<Chunk> chunks, parts_[file.slot].chunks(of_it.first_chunk + first, last - first + 1));
  const ChunkReader reader(*store_, parts_[file.slot].header(), file.path, limits);
  const uint64_t begin = first * kChunkBytes, wanted = std::min(kRangeBytes, chunks.size() * kChunkBytes);
  const auto room = std::make_unique_for_overwrite<std::byte[]>(wanted);
  uint64_t at = begin;  // in the file
  for (std::span<const Chunk> rest = chunks; !rest.empty();) {
    const ChunkRun run = next_run(rest, at / kChunkBytes);
    const std::span bytes(room.get(), run.bytes);
    TRY(reader.read(run, bytes));
    const uint64_t from = std::max(at, offset), to = std::min(at + run.bytes, offset + buffer.size());
    std::memcpy(buffer.data() + (from - offset), bytes.data() + (from - at), to - from);
    at += run.bytes;
    rest = rest.subspan(run.chunks.size());
  }
  return success();
}

}  // namespace ckptfs::meta::remote
