#include "meta/remote/remote_step.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "io/parallel.h"
#include "io/printable.h"
#include "meta/remote/chunk_run.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

Result<> check_part(const Part& part, const PartName& name, const DecisionName& decision) {
  if (part.name() == name && part.header().decision == decision) return success();
  return Error(EBADMSG, part_key(name.push) + ": it is another one than the commit says");
}

}  // namespace

Result<RemoteStep> RemoteStep::open(io::ObjectStore& store, const CommittedStep& step, const std::string& folder,
                                    const io::RequestLimits& limits, unsigned parallel) {
  const auto began = std::chrono::steady_clock::now();
  RemoteStep opened(store);
  opened.step_ = step;
  TRY_ASSIGN(opened.commit_, fetch_commit(store, step.decision, limits));
  const PartList& names = opened.commit_.parts;
  std::vector<std::optional<Part>> parts(names.size());
  TRY(io::for_each_parallel(names.size(), parallel, [&](size_t slot) -> Result<> {
    TRY_ASSIGN(parts[slot], fetch_part(store, names[slot].push, names[slot].digest, folder, limits.renewed(began)));
    return check_part(*parts[slot], names[slot], step.decision);
  }));
  for (std::optional<Part>& part : parts) opened.parts_.push_back(std::move(*part));
  std::vector<const Part*> all;
  for (const Part& part : opened.parts_) all.push_back(&part);
  TRY_ASSIGN(opened.whole_, with_name(store.url() + "/" + step_key(step.decision), unite(all)));
  return opened;
}

Union RemoteStep::of_slot(uint32_t slot) const {
  Union own;
  const std::vector<Entry>& entries = parts_[slot].entries();
  for (size_t index = 0; index < entries.size(); ++index) own.entries.push_back({entries[index].path, slot, index});
  return own;
}

Result<Union> RemoteStep::files_of(std::optional<uint32_t> slot) const {
  if (!slot) return whole_;
  if (*slot < slots()) return of_slot(*slot);
  const std::string all = slots() == 1 ? "1 slot" : std::to_string(slots()) + " slots";
  return Error(EINVAL,
               "slot " + std::to_string(*slot) + ": the step " + step_.name() + " has " + all + ", counted from 0");
}

Result<> RemoteStep::read(const UnionEntry& file, uint64_t offset, std::span<std::byte> buffer,
                          const io::RequestLimits& limits) const {
  const Entry& of_it = entry(file);
  if (offset > of_it.size || buffer.size() > of_it.size - offset) {
    return Error(EINVAL, io::printable(file.path) + ": it ends before what is to be read");
  }
  if (buffer.empty()) return success();
  const uint64_t first = offset / kChunkBytes, last = (offset + buffer.size() - 1) / kChunkBytes;
  TRY_ASSIGN(const std::vector<Chunk> chunks, parts_[file.slot].chunks(of_it, first, last - first + 1));
  const uint64_t begin = first * kChunkBytes, most = std::min(kMostRunBytes, chunks.size() * kChunkBytes);
  const auto room = std::make_unique_for_overwrite<std::byte[]>(most);
  const std::string key = key_of(file);
  uint64_t at = begin;  // in the file
  for (std::span<const Chunk> rest = chunks; !rest.empty();) {
    const ChunkRun run = next_run(rest, at / kChunkBytes);
    const uint64_t from = std::max(at, offset), to = std::min(at + run.bytes, offset + buffer.size());
    const auto wanted = buffer.subspan(from - offset, to - from);
    const bool whole = wanted.size() == run.bytes;  // then it is read in place
    const std::span bytes = whole ? wanted : std::span(room.get(), run.bytes);
    TRY(read_run(*store_, key, file.path, run, bytes, limits));
    if (!whole) std::memcpy(wanted.data(), bytes.data() + (from - at), wanted.size());
    at += run.bytes;
    rest = rest.subspan(run.chunks.size());
  }
  return success();
}

}  // namespace ckptfs::meta::remote
