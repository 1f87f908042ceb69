#include "fs/views/view_handle.h"

#include "fs/filesystem.h"

namespace ckptfs::fs {

ViewHandle::ViewHandle(Filesystem& fs, std::shared_ptr<const views::StepView> view, views::NodeNumber node)
    : fs_(fs), view_(std::move(view)), content_(view_->content(node)) {
  for (const uint32_t file : content_->files())
    files_.emplace(file, fs_.files.begin(view_->files[file].inode, false).file);
}

ViewHandle::~ViewHandle() {
  for (const auto& [index, file] : files_) fs_.files.end(file, false);
}

Result<size_t> ViewHandle::read(std::span<std::byte> buffer, uint64_t offset) const {
  return content_->read(buffer, offset, [this](uint32_t index, std::span<std::byte> target, uint64_t at) {
    OpenFile& file = *files_.at(index);
    auto read = [&]() -> Result<size_t> {
      TRY_ASSIGN(const auto backing, fs_.files.backing(file));
      TRY_ASSIGN(const size_t got, io::read_full(backing.descriptor, target, static_cast<off_t>(at)));
      const views::Made& made = view_->files[index];
      if (made.frozen) return got;
      // Of other bytes than the view was made from nothing is right any more.
      TRY_ASSIGN(const struct stat now, io::stat_fd(backing.descriptor));
      const bool same = now.st_size == made.size && now.st_mtim.tv_sec == made.mtime.tv_sec &&
                        now.st_mtim.tv_nsec == made.mtime.tv_nsec;
      if (!same) return Error(ESTALE, "it has changed since this view of it was opened: open it again");
      return got;
    }();
    if (read) return read;
    return Result<size_t>(
        Error(read.error().errno_value(), fs_.tree.path_of(file.inode) + ": " + read.error().message()));
  });
}

}  // namespace ckptfs::fs
