#include "io/mount_table.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include "io/fd.h"

namespace ckptfs::io {

namespace {

namespace stdfs = std::filesystem;

// Undoes the kernel's escapes: it writes space, tab, newline and backslash as \ooo.
std::string unescape(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped =
        text[i] == '\\' && i + 3 < text.size() &&
        std::all_of(text.begin() + static_cast<ptrdiff_t>(i) + 1, text.begin() + static_cast<ptrdiff_t>(i) + 4,
                    [](char c) { return c >= '0' && c <= '7'; });
    if (!escaped) {
      result += text[i];
      continue;
    }
    result += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return result;
}

// ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [OPTIONAL...] - TYPE SOURCE SUPEROPTIONS
std::optional<MountEntry> parse_entry(const std::string& line) {
  std::istringstream words(line);
  std::string skipped;
  MountEntry entry;
  std::string here;
  words >> entry.id >> entry.parent >> entry.device >> entry.root >> entry.mountpoint >> here;
  entry.read_only = here == "ro" || here.starts_with("ro,");
  while (words >> skipped && skipped != "-") {
  }
  if (!(words >> entry.type >> entry.source)) return std::nullopt;
  words >> entry.options;
  entry.root = unescape(entry.root);
  entry.mountpoint = unescape(entry.mountpoint);
  entry.source = unescape(entry.source);
  return entry;
}

bool link_lies_within(const stdfs::path& link, const std::string& folder) {
  char target[PATH_MAX];
  const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
  return length > 0 && lies_within(std::string(target, static_cast<size_t>(length)), folder);
}

bool maps_from(const stdfs::path& process, const std::string& folder) {
  const Result<std::string> maps = read_file((process / "maps").string());
  if (!maps) return false;
  std::istringstream lines(maps.value());
  for (std::string line; std::getline(lines, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && lies_within(line.substr(path), folder)) return true;
  }
  return false;
}

bool holds(const stdfs::path& process, const std::string& folder) {
  for (const char* link : {"cwd", "root", "exe"}) {
    if (link_lies_within(process / link, folder)) return true;
  }
  std::error_code ignored;  // the process may end meanwhile
  for (stdfs::directory_iterator file(process / "fd", ignored), end; !ignored && file != end; file.increment(ignored)) {
    if (link_lies_within(file->path(), folder)) return true;
  }
  return maps_from(process, folder);
}

std::string describe(const stdfs::path& process) {
  const Result<std::string> name = read_file((process / "comm").string());
  std::string text = name ? name.value() : "?";
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text + " (pid " + process.filename().string() + ")";
}

}  // namespace

Result<std::vector<MountEntry>> mount_table() {
  TRY_ASSIGN(const std::string text, read_file("/proc/self/mountinfo"));
  return parse_mount_table(text);
}

std::vector<MountEntry> parse_mount_table(const std::string& text) {
  std::vector<MountEntry> entries;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (auto entry = parse_entry(line)) entries.push_back(std::move(*entry));
  }
  return entries;
}

std::vector<std::string> holders_of(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (stdfs::directory_iterator process("/proc", ignored), end; !ignored && process != end;
       process.increment(ignored)) {
    const std::string name = process->path().filename().string();
    const bool is_process = std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (is_process && holds(process->path(), folder)) found.push_back(describe(process->path()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_ckptfs(const MountEntry& mount) { return mount.type == "fuse.ckptfs"; }

bool is_trusted(const MountEntry& mount, uint32_t uid) {
  const std::string list = "," + mount.options + ",";
  return list.find(",user_id=0,") != std::string::npos ||
         list.find(",user_id=" + std::to_string(uid) + ",") != std::string::npos;
}

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

// The longest mount point wins. Of several mounts at one path the topmost wins, which is the last in the list.
std::optional<MountEntry> mount_of(const std::vector<MountEntry>& mounts, const std::string& path) {
  std::optional<MountEntry> best;
  for (const MountEntry& entry : mounts) {
    const bool longer = !best || entry.mountpoint.size() >= best->mountpoint.size();
    if (lies_within(path, entry.mountpoint) && longer) best = entry;
  }
  return best;
}

std::string path_inside(const MountEntry& mount, const std::string& path) {
  const std::string below = mount.mountpoint == "/" ? path : path.substr(mount.mountpoint.size());
  const std::string inside = (mount.root == "/" ? "" : mount.root) + below;
  return inside.empty() ? "/" : inside;
}

std::string path_outside(const MountEntry& mount, const std::string& inside) {
  const std::string below = mount.root == "/" ? inside : inside.substr(mount.root.size());
  if (below.empty() || below == "/") return mount.mountpoint;
  return (mount.mountpoint == "/" ? "" : mount.mountpoint) + below;
}

std::vector<std::string> mounts_on(const std::vector<MountEntry>& mounts, const MountEntry& mount) {
  std::vector<std::string> found;
  for (const MountEntry& entry : mounts) {
    if (entry.parent == mount.id) found.push_back(entry.mountpoint);
  }
  return found;
}

bool lies_within(const std::string& path, const std::string& folder) {
  if (folder == "/") return path.starts_with('/');
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace ckptfs::io
