#include "fs/adopt/inline_block_dedup.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/aligned_buffer.h"
#include "io/clone.h"
#include "io/fault.h"
#include "io/log.h"

namespace ckptfs::fs {

namespace {

constexpr size_t kSmallestRun = 64 << 10;   // below, a call costs more than the blocks
constexpr size_t kMostCompared = 64 << 10;  // of the first WRITE

thread_local io::AlignedBuffer present_content;

// Reads `size` bytes at `offset`, fewer only at the end of the file.
Result<std::span<const std::byte>> read_there(int descriptor, size_t size, uint64_t offset) {
  const auto there = present_content.get(size);
  if (there.size() < size) return Error(ENOMEM);
  TRY_ASSIGN(const size_t got, io::read_full(descriptor, there, static_cast<off_t>(offset)));
  return std::span<const std::byte>(there.first(got));
}

}  // namespace

InlineBlockDedup::~InlineBlockDedup() {
  if (source_) environment_.close(*source_);
}

void InlineBlockDedup::give_up(const Error& reason) {
  if (ended_.exchange(true)) return;
  add(counters_.adoption_fallbacks);
  log::warn("{} is written, not adopted: {}", name_, reason.message());
}

DataPath::Written InlineBlockDedup::write(std::span<const std::byte> data, off_t offset, DataPath& plain) {
  const SpeculativeClone::Source* source = ended_ ? nullptr : source_for(data, offset, plain.buffered());
  if (source == nullptr) return plain.write(data, offset);
  DataPath::Written written;
  for (const Part& part : parts(*source, data, static_cast<uint64_t>(offset))) {
    const auto at = offset + static_cast<off_t>(part.begin);
    const size_t size = part.end - part.begin;
    if (!part.shared || !share(*source, plain.buffered(), at, size)) {
      auto rest = plain.write(data.subspan(part.begin, size), at);
      if (rest.bytes < size) return {written.bytes + rest.bytes, std::move(rest.error)};
    }
    written.bytes += size;
  }
  return written;
}

// Null: there is no source that can be used.
const SpeculativeClone::Source* InlineBlockDedup::source_for(std::span<const std::byte> data, off_t offset, int blob) {
  const io::MutexLock lock(mutex_);
  if (source_) return &*source_;
  const auto chosen = choose(data, offset, blob);
  candidates_.clear();
  if (!chosen || !chosen.value()) {
    if (!chosen) give_up(chosen.error());
    ended_ = true;
    return nullptr;
  }
  auto opened = environment_.open(*chosen.value());
  if (!opened) {
    give_up(opened.error());
    return nullptr;
  }
  source_ = std::move(opened).value();
  if (!source_->is_unchanged()) {  // somebody is writing it
    ended_ = true;
    return nullptr;
  }
  add(counters_.adoptions);
  return &*source_;
}

Result<std::optional<InodeNumber>> InlineBlockDedup::choose(std::span<const std::byte> data, off_t offset,
                                                            int blob) const {
  TRY_ASSIGN(const struct stat own, io::stat_fd(blob));
  const auto begin = data.first(std::min(data.size(), kMostCompared));
  for (const InodeNumber candidate : candidates_) {
    TRY_ASSIGN(const auto descriptor, none_if_gone(environment_.open_uncounted(candidate)));
    if (!descriptor) continue;
    TRY_ASSIGN(const struct stat st, io::stat_fd(descriptor->get()));
    if (own.st_size > 0 && st.st_size != own.st_size) continue;
    TRY_ASSIGN(const auto there, read_there(descriptor->get(), begin.size(), static_cast<uint64_t>(offset)));
    if (there.size() == begin.size() && std::memcmp(there.data(), begin.data(), begin.size()) == 0) return {candidate};
  }
  return std::optional<InodeNumber>();
}

// Splits `data` into runs of whole blocks that the source has too, and what lies between them.
std::vector<InlineBlockDedup::Part> InlineBlockDedup::parts(const SpeculativeClone::Source& source,
                                                            std::span<const std::byte> data, uint64_t offset) {
  std::vector<Part> found;
  const auto put = [&found](size_t begin, size_t end, bool shared) {
    if (begin == end) return;
    const bool together = !shared && !found.empty() && !found.back().shared;
    if (together) found.back().end = end;
    if (!together) found.push_back({begin, end, shared});
  };
  const auto there = read_there(source.descriptor, data.size(), offset);
  if (!there) give_up(there.error());
  const size_t head =
      std::min(data.size(), (SpeculativeClone::kBlock - offset % SpeculativeClone::kBlock) % SpeculativeClone::kBlock);
  const size_t comparable =
      there && there.value().size() > head ? (there.value().size() - head) / SpeculativeClone::kBlock : 0;
  const size_t last = head + comparable * SpeculativeClone::kBlock;
  const auto equal = [&](size_t at) {
    return std::memcmp(data.data() + at, there.value().data() + at, SpeculativeClone::kBlock) == 0;
  };
  put(0, head, false);
  uint64_t mismatched = 0;
  for (size_t begin = head; begin < last;) {
    const bool same = equal(begin);
    size_t end = begin + SpeculativeClone::kBlock;
    while (end < last && equal(end) == same) end += SpeculativeClone::kBlock;
    if (!same) mismatched += end - begin;
    put(begin, end, same && end - begin >= kSmallestRun);
    begin = end;
  }
  put(last, data.size(), false);
  const uint64_t wrong = mismatched_ += mismatched;
  if (const uint64_t all = compared_ += last - head; wrong >= SpeculativeClone::kPatience && wrong > all / 2)
    ended_ = true;
  return found;
}

// False: these bytes must be written.
bool InlineBlockDedup::share(const SpeculativeClone::Source& source, int blob, off_t offset, size_t size) {
  Result<> cloned = io::fault_point("adopt.clone_range");
  if (cloned) cloned = io::clone_range(source.descriptor, offset, blob, offset, size);
  if (cloned) cloned = io::fault_point("adopt.clone_range_end");
  const bool there = cloned.has_value();
  const auto shared = environment_.shared(source, std::move(cloned));
  const bool same = source.is_unchanged();  // an open for writing is counted before its writer can write
  if (shared && same) {
    add(counters_.bytes_adopted, size);
    return true;
  }
  if (!shared) give_up(shared.error());
  ended_ = true;
  if (there || !same) withdraw(blob, offset, size);  // a clone that fails may have shared a part
  return false;
}

// The source may have changed before it was shared. Its bytes must not stay here if the write that replaces them fails.
void InlineBlockDedup::withdraw(int blob, off_t offset, size_t size) const {
  constexpr int kMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (::fallocate(blob, kMode, offset, static_cast<off_t>(size)) == 0) return;
  log::error("{}: {} bytes from {} on, are another file's until they are written: {}", name_, size, offset,
             std::strerror(errno));
}

}  // namespace ckptfs::fs
