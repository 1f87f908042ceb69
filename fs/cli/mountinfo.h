// Questions to the mount table (io/mount_table.h). Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/mount_table.h"

namespace ckptfs::fs::cli {

using io::MountEntry;

bool is_ckptfs(const MountEntry& mount);
// What is mounted at exactly this path, the topmost where several are.
std::optional<MountEntry> mounted_at(const std::vector<MountEntry>& mounts, const std::string& path);
// Mounts on top of it, which keep it busy.
std::vector<std::string> mounts_on(const std::vector<MountEntry>& mounts, const MountEntry& mount);
// `path` is `folder` or lies below it. Both absolute, without "." and "..".
bool lies_within(const std::string& path, const std::string& folder);

}  // namespace ckptfs::fs::cli
