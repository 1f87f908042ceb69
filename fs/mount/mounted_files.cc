#include "fs/mount/mounted_files.h"

#include "fs/ops/filesystem.h"

namespace ckptfs::fs {

bool MountedFiles::open_for_writing(meta::InodeNumber inode) const { return fs_.files.open_for_writing(inode); }

bool MountedFiles::open_at_all(meta::InodeNumber inode) const { return fs_.files.open_at_all(inode); }

bool MountedFiles::writing() const { return fs_.files.writing(); }

Result<> MountedFiles::write_back(const std::vector<meta::InodeNumber>& inodes) {
  return fs_.files.with_writers(inodes, [this](OpenFile& file, int descriptor) -> Result<> {
    if (fs_.modes.passthrough) return success();  // mappings map the blob itself, and a clone takes its dirty pages
    if (const auto written = fs_.kernel.write_back(file.inode); !written) {
      return Error(written.error().errno_value(), "writing back mapped pages of " + fs_.tree.path_of(file.inode));
    }
    return fs_.file_sync.sync_data(file, descriptor);
  });
}

void MountedFiles::invalidate(meta::InodeNumber inode) { fs_.notifications.attributes_changed(inode); }

void MountedFiles::invalidate_name(meta::InodeNumber folder, const std::string& name) {
  fs_.notifications.name_changed(folder, name);
}

void MountedFiles::drop_view_blocks() { fs_.view_files.drop_all_blocks(); }

}  // namespace ckptfs::fs
