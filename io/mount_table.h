// What this mount namespace has mounted (/proc/self/mountinfo), and which processes hold files under a mount. Reads
// /proc only, never the mounts themselves: safe on a dead FUSE mount. Stateless; any thread.
#pragma once

#include <cstdint>
#include <optional>
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

bool is_ckptfs(const MountEntry& mount);
// The kernel lets this user into it: whoever mounted it, or all.
bool may_enter(const MountEntry& mount, uint32_t uid);
// What is mounted at exactly this path, the topmost where several are.
std::optional<MountEntry> mounted_at(const std::vector<MountEntry>& mounts, const std::string& path);
// What is mounted there or above: the file system that the path (absolute, without links) is of.
std::optional<MountEntry> mount_of(const std::vector<MountEntry>& mounts, const std::string& path);
// What such a path is called in the file system: "/" for the mountpoint itself.
std::string path_inside(const MountEntry& mount, const std::string& path);
// Mounts on top of it, which keep it busy.
std::vector<std::string> mounts_on(const std::vector<MountEntry>& mounts, const MountEntry& mount);
// `path` is `folder` or lies below it. Both absolute, without "." and "..".
bool lies_within(const std::string& path, const std::string& folder);

// "name (pid 123)" for each process of this machine that has a file, folder or mapping under `folder` (an absolute path
// without links), sorted. Best effort: what /proc refuses to show is left out.
std::vector<std::string> holders_of(const std::string& folder);

}  // namespace ckptfs::io
