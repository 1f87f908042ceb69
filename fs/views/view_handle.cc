#include "fs/views/view_handle.h"

#include "fs/filesystem.h"

namespace ckptfs::fs {

ViewHandle::ViewHandle(Filesystem& fs, std::shared_ptr<const views::StepView> view, views::NodeNumber node)
    : fs_(fs), view_(std::move(view)), content_(view_->content(node)) {
  for (const uint32_t file : content_->files()) files_.emplace(file, fs_.files.begin(view_->inodes[file], false).file);
}

ViewHandle::~ViewHandle() {
  for (const auto& [index, file] : files_) fs_.files.end(file, false);
}

Result<size_t> ViewHandle::read(std::span<std::byte> buffer, uint64_t offset) const {
  return content_->read(buffer, offset, [this](uint32_t index, std::span<std::byte> target, uint64_t at) {
    OpenFile& file = *files_.at(index);
    const auto read = [&]() -> Result<size_t> {
      TRY_ASSIGN(const auto backing, fs_.files.backing(file));
      TRY_ASSIGN(const size_t got, io::read_full(backing.descriptor, target, static_cast<off_t>(at)));
      if (got < target.size()) return Error(EIO, "it is shorter than it was");
      return got;
    }();
    if (read) return read;
    return Result<size_t>(
        Error(read.error().errno_value(), fs_.tree.path_of(file.inode) + ": " + read.error().message()));
  });
}

}  // namespace ckptfs::fs
