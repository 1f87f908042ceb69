#include "fs/cli/mount_plan.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>

#include "fs/cli/daemon_probe.h"
#include "fs/cli/system.h"
#include "io/fd.h"
#include "io/image.h"
#include "io/process.h"
#include "io/unmount.h"

namespace ckptfs::fs::cli {
namespace {

constexpr int kMaximumStackedMounts = 16;

Result<> check_folder_at(const std::string& mountpoint) {
  struct stat st {};
  if (::stat(mountpoint.c_str(), &st) == 0) {
    if (S_ISDIR(st.st_mode)) return success();
    return Error(ENOTDIR, mountpoint + ": is no directory; a mountpoint has to be one");
  }
  if (errno == ENOENT) return Error(ENOENT, mountpoint + ": there is no such folder; make it: mkdir " + mountpoint);
  if (errno != ENOTCONN) return last_error(mountpoint);
  return Error(ENOTCONN, mountpoint + ": a dead mount of another file system; take it away: umount -l " + mountpoint);
}

// Reads the token: the one line of a file that no other user may read.
Result<std::string> read_token(const std::string& path) {
  constexpr size_t kShortest = 16;
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return last_error("http_token=" + path);
  if ((st.st_mode & 077) != 0) {
    return Error(EACCES, "http_token=" + path + ": others may read it; chmod 600 " + path);
  }
  TRY_ASSIGN(std::string token, io::read_file(path));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  // The page takes the token from its address. So only characters are allowed that mean nothing in an address.
  const bool plain = std::all_of(token.begin(), token.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("._~-").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (token.size() < kShortest || !plain) {
    return Error(EINVAL, "http_token=" + path + ": it has no line of 16 or more letters and digits; make one: " +
                             "(umask 77; openssl rand -hex 32 >" + path + ")");
  }
  return token;
}

}  // namespace

Result<HttpOptions> plan_http(const ParsedOptions& options) {
  HttpOptions http{options.http, {}};
  if (http.address.empty()) {
    if (options.http_token.empty()) return http;
    return Error(EINVAL, "-o http_token=FILE: goes with http=ADDRESS:PORT");
  }
  if (!options.http_token.empty()) {
    TRY_ASSIGN(http.token, read_token(options.http_token));
  } else if (!is_loopback(http.address)) {
    return Error(EINVAL, "-o http=" + http.address + ": others than this machine could look at it; say who may by a " +
                             "token: http_token=FILE, or listen on 127.0.0.1");
  }
  return http;
}

Result<MountPlan> plan_mount(const MountArguments& arguments) {
  MountPlan plan;
  TRY_ASSIGN(plan.options, parse_mount_options(arguments.options));
  if (!arguments.image.empty()) {
    TRY_ASSIGN(plan.image_size, io::parse_size(arguments.image));
    if (*plan.image_size < io::kMinimumImageSize) {
      return Error(EINVAL, "--image " + arguments.image + ": an image has at least 512M");
    }
  } else if (arguments.sparse) {
    return Error(EINVAL, "--sparse: goes with --image SIZE");
  }
  TRY_ASSIGN(plan.store, absolute_path(arguments.store));
  TRY_ASSIGN(plan.mountpoint, absolute_path(arguments.mountpoint));
  if (!arguments.log.empty()) {
    TRY_ASSIGN(plan.log, absolute_path(arguments.log));
  }
  TRY_ASSIGN(plan.http, plan_http(plan.options));
  plan.sparse = arguments.sparse;
  plan.sector = arguments.sector;
  plan.foreground = arguments.foreground;
  plan.log_level = arguments.log_level;
  return plan;
}

Result<> check_place_of_store(const MountPlan& plan) {
  const std::string above = std::filesystem::path(plan.store).parent_path();
  struct stat st {};
  if (::stat(above.c_str(), &st) == 0 || errno != ENOENT) return success();
  return Error(ENOENT, plan.store + ": the folder for it is not there; make it, or mount its disk: mkdir -p " + above);
}

Result<> check_user(const MountPlan& plan) {
  if (geteuid() == 0) return success();
  if (plan.image_size || io::has_image(plan.store)) {
    return Error(EPERM, plan.store + ": to mount its image takes root; sudo ckptfs mount ... (the mount then belongs " +
                            "to you), or put the store on an XFS that is yours");
  }
  const std::string above = std::filesystem::path(plan.store).parent_path();
  const std::string& folder = ::access(plan.store.c_str(), F_OK) == 0 ? plan.store : above;
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return last_error(folder +
                      ": this user cannot keep a store there; name a folder that is yours, or sudo ckptfs mount");
  }
  if (io::find_program(io::kUserUnmounter)) return success();
  return Error(EPERM, plan.mountpoint +
                          ": an ordinary user mounts by fusermount3, which is not here (apt install fuse3); or sudo "
                          "ckptfs mount ... (the mount then belongs to you: -o uid= defaults to who called sudo)");
}

Result<> check_nesting(const MountPlan& plan) {
  if (io::lies_within(plan.store, plan.mountpoint)) {
    return Error(EINVAL, plan.store + ": the store (and its image) lies below the mountpoint " + plan.mountpoint +
                             "; the mount would hide it: choose another folder for one of them");
  }
  if (io::lies_within(plan.mountpoint, plan.store)) {
    return Error(EINVAL,
                 plan.mountpoint + ": the mountpoint lies in the store " + plan.store + "; choose a folder outside it");
  }
  if (!plan.log.empty() && io::lies_within(plan.log, plan.mountpoint)) {
    return Error(EINVAL, plan.log + ": the log lies below the mountpoint " + plan.mountpoint +
                             "; the daemon would wait for itself: choose a file elsewhere");
  }
  return success();
}

Result<> clear_mountpoint(const std::string& mountpoint) {
  for (int i = 0; i < kMaximumStackedMounts; ++i) {
    TRY_ASSIGN(const auto mounts, io::mount_table());
    const auto mounted = io::mounted_at(mounts, mountpoint);
    if (!mounted || !is_ckptfs(*mounted)) return check_folder_at(mountpoint);
    // Ask the daemon itself: the kernel would go on answering a stat from its cache.
    const DaemonProbe probe = probe_daemon(*mounted);
    if (!probe.dead) {
      return Error(EBUSY, mountpoint + ": ckptfs is mounted there already (store " + mounted->source + ")" +
                              (probe.daemon ? "; use it" : ", though its daemon does not answer; see its log") +
                              ", or end it first: ckptfs umount " + mountpoint);
    }
    TRY(io::unmount(mountpoint, io::Unmount::detach));
    std::fprintf(stderr, "ckptfs: %s: the daemon of store %s had died; its dead mount was detached\n",
                 mountpoint.c_str(), mounted->source.c_str());
  }
  return Error(EBUSY, mountpoint + ": too many dead mounts on top of each other; umount -l " + mountpoint);
}

}  // namespace ckptfs::fs::cli
