// What this mount namespace has mounted (/proc/self/mountinfo), and which processes hold files under a mount. Reads
// /proc only, never the mounts themselves: safe on a dead FUSE mount. Stateless; any thread.
#pragma once

#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::io {

struct MountEntry {
  int id = 0;  // of the mount, and of the one it stands on
  int parent = 0;
  std::string device;      // "MAJOR:MINOR"
  std::string root;        // which folder of the file system this is: "/", but for bind mounts
  std::string mountpoint;  // absolute, unescaped
  std::string type;        // "xfs", "fuse.ckptfs"
  std::string source;      // "/dev/loop0", or what the file system calls itself
  std::string options;     // of the file system: "rw,user_id=0,group_id=0,allow_other"
};

// In the order of mounting: of several at one mountpoint, the last is the one that is seen.
Result<std::vector<MountEntry>> mount_table();
// The same of a text in mountinfo's form; lines of another form are left out.
std::vector<MountEntry> parse_mount_table(const std::string& text);

// "name (pid 123)" for each process of this machine that has a file, folder or mapping under `folder` (an absolute path
// without links), sorted. Best effort: what /proc refuses to show is left out.
std::vector<std::string> holders_of(const std::string& folder);

}  // namespace ckptfs::io
