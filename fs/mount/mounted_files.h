// The open files of a mount, as the store asks about them: meta::OpenFiles, answered by the node table, and by what
// else of the mount knows of a file that is open.
//
// Thread safety: all of it; takes no lock of its own.
#pragma once

#include <string>
#include <vector>

#include "meta/store/open_files.h"

namespace ckptfs::fs {

class Filesystem;

class MountedFiles final : public meta::OpenFiles {
 public:
  explicit MountedFiles(Filesystem& fs) : fs_(fs) {}

  bool open_for_writing(meta::InodeNumber inode) const override;
  bool open_at_all(meta::InodeNumber inode) const override;
  bool writing() const override;
  Result<> write_back(const std::vector<meta::InodeNumber>& inodes) override;
  void invalidate(meta::InodeNumber inode) override;
  void invalidate_name(meta::InodeNumber folder, const std::string& name) override;
  void drop_view_blocks() override;

 private:
  Filesystem& fs_;
};

}  // namespace ckptfs::fs
