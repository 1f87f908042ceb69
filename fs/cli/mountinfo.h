// Questions to the mount table (io/mount_table.h). Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/mount_table.h"

namespace ckptfs::fs::cli {

using io::MountEntry;

bool is_ckptfs(const MountEntry& mount);
// The kernel lets this user into it: whoever mounted it, or all.
bool may_enter(const MountEntry& mount, uint32_t uid);
// What is mounted at exactly this path, the topmost where several are.
std::optional<MountEntry> mounted_at(const std::vector<MountEntry>& mounts, const std::string& path);
// Mounts on top of it, which keep it busy.
std::vector<std::string> mounts_on(const std::vector<MountEntry>& mounts, const MountEntry& mount);
// `path` is `folder` or lies below it. Both absolute, without "." and "..".
bool lies_within(const std::string& path, const std::string& folder);

}  // namespace ckptfs::fs::cli
