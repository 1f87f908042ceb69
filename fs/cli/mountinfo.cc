#include "fs/cli/mountinfo.h"

namespace ckptfs::fs::cli {

bool is_ckptfs(const MountEntry& mount) { return mount.type == "fuse.ckptfs"; }

bool may_enter(const MountEntry& mount, uint32_t uid) {
  const std::string list = "," + mount.options + ",";
  return list.find(",allow_other,") != std::string::npos || list.find(",user_id=") == std::string::npos ||
         list.find(",user_id=" + std::to_string(uid) + ",") != std::string::npos;
}

std::optional<MountEntry> mounted_at(const std::vector<MountEntry>& mounts, const std::string& path) {
  std::optional<MountEntry> found;
  for (const MountEntry& entry : mounts) {
    if (entry.mountpoint == path) found = entry;
  }
  return found;
}

std::vector<std::string> mounts_on(const std::vector<MountEntry>& mounts, const MountEntry& mount) {
  std::vector<std::string> found;
  for (const MountEntry& entry : mounts) {
    if (entry.parent == mount.id) found.push_back(entry.mountpoint);
  }
  return found;
}

bool lies_within(const std::string& path, const std::string& folder) {
  if (folder == "/") return true;
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace ckptfs::fs::cli
