#include "fs/cli/doctor_settings.h"

#include <mntent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fs/cli/client.h"
#include "fs/cli/daemon_probe.h"
#include "fs/cli/limited_call.h"
#include "fs/cli/mount_options.h"
#include "fs/cli/system.h"
#include "io/fd.h"
#include "io/text.h"

namespace ckptfs::fs::cli {
namespace {

void fail_check(Check& check, const std::string& found, const std::string& advice) {
  check.verdict = Verdict::fail;
  check.found = found;
  check.advice = advice;
}

bool is_folder(const std::string& path) {
  const auto found = call_with_limit([&]() -> Result<std::string> {
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0) return last_error();
    if (!S_ISDIR(st.st_mode)) return Error(ENOTDIR);
    return std::string();
  });
  // A dead mount is a folder, too, and so is one whose daemon hangs: another check finds them. What this user may not
  // see is taken for a folder.
  return found || (found.error().errno_value() != ENOENT && found.error().errno_value() != ENOTDIR);
}

// The first mount makes the store's own folder, but not the folder that it lies in.
void check_folders(Check& check, std::string store, const std::string& mountpoint) {
  while (store.size() > 1 && store.back() == '/') store.pop_back();
  if (!is_folder(mountpoint)) {
    fail_check(check, mountpoint + ": there is no such folder", "mkdir -p " + mountpoint);
  } else if (const std::string above = std::filesystem::path(store).parent_path(); !is_folder(above)) {
    fail_check(check, above + ": there is no such folder, for " + store, "mkdir -p " + above);
  }
}

bool is_program(const char* path) { return ::access(path, X_OK) == 0; }

// mount(8) runs /sbin/mount.TYPE, whatever PATH says. For fuse.ckptfs it runs libfuse's mount.fuse, if there is no
// mount.fuse.ckptfs.
void check_helper(Check& check, const std::string& type) {
  if (type == "ckptfs" && !is_program("/sbin/mount.ckptfs")) {
    fail_check(check, "no /sbin/mount.ckptfs for mount(8) to run",
               "the Debian package installs it; else: ln -s $(command -v ckptfs) /sbin/mount.ckptfs");
  } else if (type != "ckptfs" && !is_program("/sbin/mount.fuse.ckptfs") && !is_program("/sbin/mount.fuse")) {
    fail_check(check, "no /sbin/mount.fuse for mount(8) to run",
               "apt install fuse3, or write ckptfs instead of " + type);
  }
}

Check check_entry(const mntent& entry) {
  const std::string store = entry.mnt_fsname, mountpoint = entry.mnt_dir;
  Check check{"fstab", Verdict::ok, store + " at " + mountpoint, ""};
  check_helper(check, entry.mnt_type);
  check_folders(check, store, mountpoint);
  if (const auto options = parse_mount_options({entry.mnt_opts}); !options) {
    fail_check(check, mountpoint + ": " + options.error().message(), "correct its line in /etc/fstab");
  }
  return check;
}

// The option lists of a command line: the word behind each -o.
std::vector<std::string> option_lists(const std::string& words) {
  std::istringstream stream(words);
  std::vector<std::string> lists;
  for (std::string word; stream >> word;) {
    if (word == "-o" && stream >> word) lists.push_back(word);
  }
  return lists;
}

using Settings = std::map<std::string, std::string>;

// Each line is NAME=VALUE, as in systemd's EnvironmentFile. Quotes around a value are not part of the value.
Settings settings_in(const std::string& text) {
  Settings settings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = io::trimmed(line);
    const size_t equals = line.find('=');
    if (line.empty() || line[0] == '#' || line[0] == ';' || equals == std::string::npos) continue;
    const std::string value = io::trimmed(line.substr(equals + 1));
    const bool quoted =
        value.size() > 1 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front();
    settings[io::trimmed(line.substr(0, equals))] = quoted ? value.substr(1, value.size() - 2) : value;
  }
  return settings;
}

Check check_service(const std::string& path, const Result<std::string>& text) {
  Check check{"service", Verdict::ok, path, ""};
  if (!text) {
    fail_check(check, path + ": " + text.error().message(), "chmod 644 " + path);
    return check;
  }
  Settings settings = settings_in(text.value());
  for (const char* name : {"STORE", "MOUNTPOINT"}) {
    if (settings[name].starts_with("/")) continue;
    fail_check(check, path + ": no " + name + " with a path from /", std::string("write ") + name + "=/... into it");
    return check;
  }
  check.found += ": " + settings["STORE"] + " at " + settings["MOUNTPOINT"];
  check_folders(check, settings["STORE"], settings["MOUNTPOINT"]);
  if (const auto options = parse_mount_options(option_lists(settings["OPTIONS"])); !options) {
    fail_check(check, path + ": " + options.error().message(), "correct OPTIONS in it");
  }
  return check;
}

}  // namespace

namespace {

// A check for each series of the mount that has a remote.
std::vector<Check> check_remotes(const MountEntry& mount) {
  std::vector<Check> checks;
  const auto status = ask_daemon(mount, "remote_status", {{"path", "/"}});
  if (!status) return {{"remote", Verdict::warn, mount.mountpoint + ": " + status.error().message(), "try again"}};
  for (const nlohmann::json& remote : status.value().value("remotes", nlohmann::json::array())) {
    const std::string url = remote.value("url", ""), trouble = remote.value("trouble", "");
    Check check{"remote", Verdict::ok, mount.mountpoint + remote.value("series", "") + " is pushed to " + url, ""};
    if (!trouble.empty()) {
      check.verdict = Verdict::warn;
      check.found = check.found + ", and cannot be now: " + trouble;
      check.advice = "ckptfs remote check " + url + " tries it; training goes on meanwhile";
    }
    checks.push_back(std::move(check));
    const nlohmann::json collector = remote.value("collector", nlohmann::json());
    const std::string stopped = collector.is_object() ? collector.value("trouble", "") : "";
    if (!stopped.empty()) {
      checks.push_back(
          {"remote", Verdict::warn, "the rules of " + url + " are not carried out: " + stopped,
           "ckptfs remote gc --dry-run " + url + " tries it; nothing is lost, but nothing is removed there"});
    }
  }
  return checks;
}

}  // namespace

std::vector<Check> check_mounts() {
  std::vector<Check> checks;
  const auto mounts = io::mount_table();
  if (!mounts) return {{"mount", Verdict::fail, mounts.error().message(), "mount /proc"}};
  for (const MountEntry& mount : mounts.value()) {
    if (!is_ckptfs(mount)) continue;
    Check check{"mount", Verdict::ok, mount.mountpoint + ": its daemon answers", ""};
    const DaemonProbe probe = probe_daemon(mount);
    if (probe.dead) {
      fail_check(check, mount.mountpoint + ": its daemon is dead",
                 "ckptfs mount " + mount.source + " " + mount.mountpoint + " replaces it; nothing is lost");
    } else if (!probe.daemon) {
      check.verdict = Verdict::warn;
      check.found = mount.mountpoint + ": its daemon does not answer, or not to you";
      check.advice = "look as the user who mounted it, or as root; then into its log";
    }
    const bool answers = check.verdict == Verdict::ok;
    checks.push_back(std::move(check));
    if (answers) std::ranges::move(check_remotes(mount), std::back_inserter(checks));
  }
  return checks;
}

std::vector<Check> check_fstab(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> table(::setmntent(path.c_str(), "re"), ::endmntent);
  std::vector<Check> checks;
  if (!table) return checks;  // there is no fstab
  mntent entry{};
  std::array<char, 16384> buffer{};
  while (::getmntent_r(table.get(), &entry, buffer.data(), buffer.size()) != nullptr) {
    const std::string type = entry.mnt_type;
    if (type == "ckptfs" || type == "fuse.ckptfs") checks.push_back(check_entry(entry));
  }
  return checks;
}

std::vector<Check> check_services(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    if (file.path().extension() == ".conf") paths.push_back(file.path());
  }
  std::ranges::sort(paths);
  std::vector<Check> checks;
  for (const std::string& path : paths) checks.push_back(check_service(path, io::read_file(path)));
  return checks;
}

}  // namespace ckptfs::fs::cli
