#include "meta/care/step_diff.h"

#include <fcntl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "io/aligned_buffer.h"
#include "meta/care/neighbours.h"
#include "meta/steps/steps.h"

namespace ckptfs::meta {
namespace {

constexpr uint64_t kBlock = 4096;

// The files below the folder, by their paths from the folder down.
Result<std::map<std::string, InodeNumber>> files_below(const Tree& tree, InodeNumber folder) {
  std::map<std::string, InodeNumber> files;
  TRY(for_each_file(tree, folder, [&](const std::vector<std::string>& path, InodeNumber file) -> Result<> {
    files.emplace(fmt::format("{}", fmt::join(path, "/")), file);
    return success();
  }));
  return files;
}

struct DiffSide {
  io::Fd fd;
  uint64_t size = 0;
  std::vector<io::Digest> chunks;  // empty: the digests are not known
};

Result<DiffSide> open_diff_side(const Store& store, InodeNumber file) {
  DiffSide side;
  TRY_ASSIGN(const InodeRecord record, store.tree().inode(file));
  TRY_ASSIGN(side.fd, store.tree().open_blob(file, record, O_RDONLY));
  TRY_ASSIGN(const struct stat stat, io::stat_fd(side.fd.get()));
  side.size = static_cast<uint64_t>(stat.st_size);
  TRY_ASSIGN(const BlobRecord blob, store.index().blob(record.blob));
  if (!are_current(record, blob.digest) || blob.digest.length != side.size) return side;
  TRY_ASSIGN(side.chunks, digests_of(store.index(), record.blob, blob.digest));
  return side;
}

// Compares the parts of two files that share no blocks, chunk by chunk.
class FileComparison {
 public:
  FileComparison(DiffSide first, DiffSide second) : first_(std::move(first)), second_(std::move(second)) {}

  Result<FileDiff> run(uint64_t from, const Pause& pause) {
    const uint64_t common = std::min(first_.size, second_.size);
    TRY_ASSIGN(const auto ranges, io::unshared_ranges(first_.fd.get(), second_.fd.get(), common));
    for (const io::Range& range : ranges) {
      const uint64_t end = range.offset + range.length;
      for (uint64_t at = std::max(range.offset, from); at < end;) {
        const uint64_t next = std::min(end, (at / kDigestChunk + 1) * kDigestChunk);
        const auto began = std::chrono::steady_clock::now();
        TRY(compare(at, next - at));
        diff_.next = at = next;
        if (!pause(std::chrono::steady_clock::now() - began)) return diff_;
      }
    }
    diff_.changed += std::max(first_.size, second_.size) - common;
    diff_.done = true;
    return diff_;
  }

 private:
  Result<> compare(uint64_t offset, uint64_t length) {
    const uint64_t chunk = offset / kDigestChunk;
    if (chunk < first_.chunks.size() && chunk < second_.chunks.size()) {
      if (first_.chunks[chunk] != second_.chunks[chunk]) diff_.changed += length;
      return success();
    }
    const auto a = first_buffer_.get(kDigestChunk);
    const auto b = second_buffer_.get(kDigestChunk);
    if (a.empty() || b.empty()) return Error(ENOMEM);
    TRY(io::read_full(first_.fd.get(), a.first(length), static_cast<off_t>(offset)));
    TRY(io::read_full(second_.fd.get(), b.first(length), static_cast<off_t>(offset)));
    diff_.read += length;
    for (uint64_t at = 0; at < length; at += kBlock) {
      const uint64_t size = std::min(kBlock, length - at);
      if (std::memcmp(a.data() + at, b.data() + at, size) != 0) diff_.changed += size;
    }
    return success();
  }

  DiffSide first_;
  DiffSide second_;
  FileDiff diff_;
  io::AlignedBuffer first_buffer_;
  io::AlignedBuffer second_buffer_;
};

}  // namespace

Result<std::vector<FilePair>> pair_files(const Tree& tree, InodeNumber first, InodeNumber second) {
  TRY_ASSIGN(const auto in_first, files_below(tree, first));
  TRY_ASSIGN(const auto in_second, files_below(tree, second));
  std::map<std::string, FilePair> pairs;
  for (const auto& [path, inode] : in_first) pairs[path].first = inode;
  for (const auto& [path, inode] : in_second) pairs[path].second = inode;
  std::vector<FilePair> sorted;
  for (auto& [path, pair] : pairs) sorted.push_back({path, pair.first, pair.second});
  return sorted;
}

Result<FileDiff> diff_files(const Store& store, InodeNumber first, InodeNumber second, uint64_t from,
                            const Pause& pause) {
  TRY_ASSIGN(const Sameness sameness, compare_files(store, first, second));
  if (sameness == Sameness::same) return FileDiff{.done = true};
  TRY_ASSIGN(DiffSide a, open_diff_side(store, first));
  TRY_ASSIGN(DiffSide b, open_diff_side(store, second));
  return FileComparison(std::move(a), std::move(b)).run(from, pause);
}

}  // namespace ckptfs::meta
