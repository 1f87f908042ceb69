#include "fs/steps/kept_file.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "fs/views/shared_content.h"
#include "io/aligned_buffer.h"
#include "io/digest.h"
#include "io/fault.h"
#include "meta/index/index.h"

namespace ckptfs::fs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kKeptChunk = meta::kDigestChunk;

class Keeping {
 public:
  Keeping(const meta::Store& store, const views::Content& content, ViewSources& sources, const KeepPause& pause)
      : store_(store), content_(content), sources_(sources), pause_(pause) {}

  Result<std::string> run(meta::BlobNumber blob, const timespec& time) {
    TRY_ASSIGN(const io::Fd file, store_.blobs().create(blob));
    TRY_ASSIGN(const bool shared,
               views::fill_with_shared(
                   file.get(), content_, [this](uint32_t of) { return sources_.descriptor(of); }, read_piece()));
    if (!shared) TRY(check_space());
    TRY(read_content(shared ? -1 : file.get()));
    TRY(store_.blobs().set_times(blob, time, time));
    TRY(io::fsync_fd(file.get()));
    TRY(io::fault_point("thin.written"));
    TRY(compare(file.get()));
    return io::hex_of(io::digest_of(std::as_bytes(std::span(digests_))));
  }

 private:
  views::ReadPiece read_piece() {
    return [this](uint32_t of, std::span<std::byte> buffer, uint64_t at) { return sources_.read(of, buffer, at); };
  }

  Result<> check_space() const {
    const meta::SpaceReport space = store_.space();
    const uint64_t room = space.free - std::min(space.free, space.cow_reserve);
    if (content_.size() <= room) return success();
    return Error(ENOSPC, "its weights need " + std::to_string(content_.size() >> 20) + " MiB, and " +
                             std::to_string(room >> 20) + " MiB are free; remove steps first");
  }

  // Calls `work` for each chunk, and pauses between them.
  Result<> for_each_chunk(const std::function<Result<>(std::span<std::byte> chunk, uint64_t offset)>& work) {
    io::AlignedBuffer memory;
    for (uint64_t at = 0; at < content_.size(); at += kKeptChunk) {
      const auto begun = Clock::now();
      const auto buffer = memory.get(kKeptChunk);
      if (buffer.empty()) return Error(ENOMEM);
      TRY(work(buffer.first(std::min<uint64_t>(kKeptChunk, content_.size() - at)), at));
      if (!pause_(Clock::now() - begun)) return Error(ECANCELED);
    }
    return success();
  }

  // Takes the digests of what the view shows. Writes it to the file, if there is one.
  Result<> read_content(int to) {
    return for_each_chunk([this, to](std::span<std::byte> chunk, uint64_t at) -> Result<> {
      TRY_ASSIGN(const size_t got, content_.read(chunk, at, read_piece()));
      if (got != chunk.size()) return Error(EIO, "the view is shorter than it was");
      digests_.push_back(io::digest_of(chunk));
      return to < 0 ? Result<>(success()) : io::write_full(to, chunk, static_cast<off_t>(at));
    });
  }

  // Reads the file from the device: what was synced is dropped from memory first.
  Result<> compare(int file) {
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    size_t next = 0;
    return for_each_chunk([&](std::span<std::byte> chunk, uint64_t at) -> Result<> {
      TRY_ASSIGN(const size_t got, io::read_full(file, chunk, static_cast<off_t>(at)));
      if (got == chunk.size() && io::digest_of(chunk) == digests_[next++]) return success();
      return Error(EIO, "the disk does not hold what was written at byte " + std::to_string(at) +
                            "; check the disk (ckptfs verify)");
    });
  }

  const meta::Store& store_;
  const views::Content& content_;
  ViewSources& sources_;
  const KeepPause& pause_;
  std::vector<io::Digest> digests_;
};

}  // namespace

Result<int> ViewSources::descriptor(uint32_t file) {
  if (const auto known = open_.find(file); known != open_.end()) return known->second.get();
  if (open_.size() >= kMostOpen) {
    TRY(check_write_back());
    open_.clear();
  }
  const meta::Tree& tree = store_.tree();
  const meta::InodeNumber inode = view_.files[file].inode;
  TRY_ASSIGN(const meta::InodeRecord record, tree.inode(inode));
  TRY(tree.refuse_suspect(inode, record));
  TRY_ASSIGN(io::Fd opened, tree.open_blob(inode, record, O_RDONLY));
  return open_.emplace(file, std::move(opened)).first->second.get();
}

Result<size_t> ViewSources::read(uint32_t file, std::span<std::byte> buffer, uint64_t offset) {
  TRY_ASSIGN(const int opened, descriptor(file));
  auto got = io::read_full(opened, buffer, static_cast<off_t>(offset));
  if (got) return got;
  return Error(got.error().errno_value(),
               store_.tree().path_of(view_.files[file].inode) + ": " + got.error().message());
}

Result<> ViewSources::check_write_back() {
  for (const auto& [file, opened] : open_) TRY(store_.tree().check_write_back(view_.files[file].inode, opened.get()));
  return success();
}

Result<std::string> keep_content(const meta::Store& store, const views::Content& content, ViewSources& sources,
                                 meta::BlobNumber blob, const timespec& time, const KeepPause& pause) {
  return Keeping(store, content, sources, pause).run(blob, time);
}

}  // namespace ckptfs::fs
