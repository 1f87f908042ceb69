// The mounts of this mount namespace (/proc/self/mountinfo), and the processes that hold files below a mount. It reads
// only /proc, never the mounts themselves, so it is safe on a dead FUSE mount. Stateless; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::io {

struct MountEntry {
  int id = 0;  // of the mount; `parent` is that of the mount it stands on
  int parent = 0;
  std::string device;      // "MAJOR:MINOR"
  std::string root;        // which folder of the file system is mounted: "/", except for bind mounts
  std::string mountpoint;  // absolute, unescaped
  std::string type;        // "xfs", "fuse.ckptfs"
  std::string source;      // "/dev/loop0", or the name that the file system gives itself
  bool read_only = false;  // here: `mount -o remount,bind,ro` changes this alone, and not the file system's own options
  std::string options;     // the file system's own options: "rw,user_id=0,group_id=0,allow_other"
};

// Returns the mounts in the order of mounting. Of several at one mount point the last one is visible.
Result<std::vector<MountEntry>> mount_table();
// Parses a text in the format of mountinfo. Lines in any other format are left out.
std::vector<MountEntry> parse_mount_table(const std::string& text);

bool is_ckptfs(const MountEntry& mount);
// Returns true if the kernel lets this user into the FUSE mount: the user mounted it, or allow_other is set.
bool may_enter(const MountEntry& mount, uint32_t uid);
// Returns true if root or this user made the FUSE mount. Anybody may mount something, and name in it a server for
// others to send their credentials to.
bool is_trusted(const MountEntry& mount, uint32_t uid);
// Returns the topmost mount at exactly this path.
std::optional<MountEntry> mounted_at(const std::vector<MountEntry>& mounts, const std::string& path);
// Returns the mount that contains the path (absolute, without symbolic links).
std::optional<MountEntry> mount_of(const std::vector<MountEntry>& mounts, const std::string& path);
// Returns the path within the mounted file system: "/" for the mount point itself, except for bind mounts.
std::string path_inside(const MountEntry& mount, const std::string& path);
// The inverse: "/steps" of the mount's file system is "/ckpt/steps". The path lies below the mount's root.
std::string path_outside(const MountEntry& mount, const std::string& inside);
// Returns the mounts on top of this one, which keep it busy.
std::vector<std::string> mounts_on(const std::vector<MountEntry>& mounts, const MountEntry& mount);
// Returns true if `path` is `folder` or is below it. Both must be absolute, without "." and "..".
bool lies_within(const std::string& path, const std::string& folder);

// Returns "name (pid 123)" for each process that has a file, folder or mapping below `folder` (an absolute path without
// symbolic links), sorted. It is best effort: what /proc refuses to show is left out.
std::vector<std::string> holders_of(const std::string& folder);

}  // namespace ckptfs::io
