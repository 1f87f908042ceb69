// What meta/ asks the mount about open files, and what it has the mount do with them.
#pragma once

#include <string>
#include <vector>

#include "io/result.h"
#include "meta/types.h"

namespace ckptfs::meta {

// Implemented by fs/, and by a stand-in where nothing is mounted. Any thread.
class OpenFiles {
 public:
  virtual ~OpenFiles() = default;
  virtual bool open_for_writing(InodeNumber inode) const = 0;
  virtual bool open_at_all(InodeNumber inode) const = 0;  // may be called with Tree::replacing() held
  // Has anybody any file open for writing?
  virtual bool writing() const = 0;
  // Brings what the kernel still holds of these files (dirty pages of mappings in direct mode) into their blobs.
  // Called with no lock and no gate held; may wait for the daemon's own workers.
  virtual Result<> write_back(const std::vector<InodeNumber>& inodes) = 0;
  // The kernel's cached attributes and pages of `inode` are out of date. Never waits; sent by a thread of its own.
  virtual void invalidate(InodeNumber inode) = 0;
  // What the kernel remembers under this name is out of date. Never waits, as above.
  virtual void invalidate_name(InodeNumber folder, const std::string& name) = 0;
  // Files were made to share blocks. The mount closes the files of views that it keeps although nobody has them open,
  // so that the blocks that were replaced are freed at once.
  virtual void drop_view_blocks() = 0;
};

}  // namespace ckptfs::meta
