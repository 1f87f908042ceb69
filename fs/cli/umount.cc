// ckptfs umount: unmounts a live or a dead mount, and says who keeps it busy.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/daemon_probe.h"
#include "fs/cli/format.h"
#include "fs/cli/holders.h"
#include "fs/cli/outcome.h"
#include "fs/cli/store_daemon.h"
#include "fs/cli/system.h"
#include "io/control_message.h"
#include "io/image.h"
#include "io/unmount.h"

namespace ckptfs::fs::cli {
namespace {

constexpr size_t kMaximumHolders = 20;

struct UmountArguments {
  std::string mountpoint;
  bool lazy = false;
  bool as_json = false;
};

// What tells how the daemon's end goes. It can be had only while the daemon serves.
struct Ending {
  std::optional<DaemonHandle> daemon;  // none: it does not answer
  io::Fd outcome;                      // none: a daemon of an older version
};

Ending ending_of(const MountEntry& mount, std::optional<DaemonHandle> daemon) {
  Ending ending{std::move(daemon), {}};
  if (!ending.daemon) return ending;
  auto reply = io::ask_mount_for_files(mount.mountpoint, "outcome", nlohmann::json::object());
  if (reply && reply.value().descriptors.size() == 1) ending.outcome = std::move(reply.value().descriptors.front());
  return ending;
}

void print_holders(const MountEntry& mount) {
  if (const auto mounts = io::mount_table()) {
    for (const std::string& above : mounts_on(mounts.value(), mount)) {
      std::fprintf(stderr, "  mounted on top: %s\n", printable(above).c_str());
    }
  }
  const auto holders = find_holders(mount, kMaximumHolders);
  for (const Holder& holder : holders) {
    std::fprintf(stderr, "  pid %d (%s) %s: %s\n", holder.pid, printable(holder.command).c_str(), holder.how.c_str(),
                 printable(holder.path).c_str());
  }
  if (holders.size() == kMaximumHolders) std::fprintf(stderr, "  (perhaps more)\n");
  if (holders.empty()) std::fprintf(stderr, "  nobody that this user may see; try as root\n");
}

void print_busy(const MountEntry& mount) {
  fail(mount.mountpoint, Error(EBUSY, "busy; end these first:"));
  print_holders(mount);
}

// `daemon`: "ended" (all is written down), "serves" those who still use the mount, "silent" (it does not answer),
// "dead".
int done(const MountEntry& mount, const UmountArguments& arguments, const char* daemon) {
  if (arguments.as_json) print_json({{"mountpoint", mount.mountpoint}, {"store", mount.source}, {"daemon", daemon}});
  return kSuccess;
}

std::optional<MountEntry> image_mount_of(const std::string& store) {
  const auto mounts = io::mount_table();
  if (!mounts) return std::nullopt;
  auto mounted = mounted_at(mounts.value(), store + "/fs");
  if (!mounted || mounted->type != "xfs" || !io::has_image(store)) return std::nullopt;
  return mounted;
}

// Unmounts the image that a daemon left mounted when it died.
int unmount_left_image(const std::string& store, bool as_json) {
  const auto mounted = image_mount_of(store);
  if (!mounted) return kSuccess;
  io::MountedImage image;
  image.image = store + "/image.xfs";
  image.folder = mounted->mountpoint;
  image.device = mounted->source;
  const auto unmounted = io::unmount_image(image);
  if (!unmounted) return fail(image.folder, unmounted.error());
  if (!as_json)
    std::printf("The image of %s, which the dead daemon had left mounted, was unmounted too.\n", store.c_str());
  return kSuccess;
}

int detach_dead(const MountEntry& mount, const UmountArguments& arguments) {
  if (const auto detached = io::unmount(mount.mountpoint, io::Unmount::detach); !detached) {
    return fail(mount.mountpoint, Error(detached.error().errno_value(),
                                        "a dead mount that could not be detached: " + detached.error().message()));
  }
  if (!arguments.as_json) std::printf("%s: the daemon had died; its mount was detached.\n", mount.mountpoint.c_str());
  const int code = unmount_left_image(mount.source, arguments.as_json);
  return code == kSuccess ? done(mount, arguments, "dead") : code;
}

// The path as one word for a shell.
std::string quoted(const std::string& path) {
  std::string word = "'";
  for (const char c : printable(path)) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

// Has the daemon stopped serving?
bool is_leaving(const DaemonHandle& daemon) {
  const auto name = io::read_file("/proc/" + std::to_string(daemon.pid) + "/comm");
  return !name || name.value().starts_with(kLeavingName);
}

void say_who_is_served(const MountEntry& mount, pid_t daemon) {
  const auto copies = find_copies(mount, kMaximumHolders);
  if (copies.empty()) {
    std::fprintf(stderr, "ckptfs: %s: unmounted, but the daemon serves it until these are done:\n",
                 printable(mount.mountpoint).c_str());
    print_holders(mount);
  } else {
    std::fprintf(
        stderr,
        "ckptfs: %s: unmounted, but also mounted elsewhere (containers, bind mounts), where the daemon serves it "
        "until these are run, or the containers end:\n",
        printable(mount.mountpoint).c_str());
  }
  for (const Holder& copy : copies) {
    if (copy.pid == 0) {
      std::fprintf(stderr, "  umount %s\n", quoted(copy.path).c_str());
    } else {  // nsenter would run the container's own umount
      std::fprintf(stderr, "  umount --namespace %d %s  # of %s\n", copy.pid, quoted(copy.path).c_str(),
                   printable(copy.command).c_str());
    }
  }
  std::fprintf(stderr, "  To end it under them all the same: kill %d\n", daemon);
}

// Says what the command waits for. Returns whether it may go on waiting for the daemon.
bool say_what_is_waited_for(const MountEntry& mount, const DaemonHandle& daemon, bool lazy) {
  if (is_leaving(daemon)) {
    std::fprintf(stderr, "ckptfs: waiting for the daemon (pid %d) to write everything down\n", daemon.pid);
    return true;
  }
  say_who_is_served(mount, daemon.pid);
  if (lazy) std::fprintf(stderr, "  This command leaves it so (--lazy).\n");
  return !lazy;
}

// The daemon writes everything down and unmounts its image only after the mount has gone in all namespaces.
int wait_for_daemon(const MountEntry& mount, const Ending& ending, const UmountArguments& arguments) {
  if (!ending.daemon) {
    std::fprintf(stderr,
                 "ckptfs: %s: unmounted; its daemon did not answer, so its end was not waited for "
                 "(see pgrep -a ckptfs)\n",
                 mount.mountpoint.c_str());
    return done(mount, arguments, "silent");
  }
  if (!wait_for_end(*ending.daemon, [&] { return say_what_is_waited_for(mount, *ending.daemon, arguments.lazy); })) {
    return done(mount, arguments, "serves");
  }
  if (const auto left = image_mount_of(mount.source)) {
    fail(left->mountpoint,
         Error(EBUSY, "the image is still mounted; end these, then umount " + left->mountpoint + ":"));
    print_holders(*left);
    return kFailed;
  }
  const auto told = ending.outcome ? Outcome::told(ending.outcome.get()) : Result<>(success());
  if (told) return done(mount, arguments, "ended");
  return fail(mount.mountpoint, Error(EIO, "unmounted, but " + told.error().message() +
                                               " (the daemon's log says more; the next mount looks at every file)"));
}

Result<MountEntry> mount_to_end(const std::optional<std::string>& mountpoint) {
  TRY_ASSIGN(const Target target, find_target(mountpoint));
  if (target.path == target.mount.root) return target.mount;
  return Error(EINVAL, *mountpoint + ": is no mountpoint; it lies on " + target.mount.mountpoint);
}

int run(const UmountArguments& arguments) {
  release_hung_mounts();
  const std::string& path = arguments.mountpoint;
  const auto mount = mount_to_end(path.empty() ? std::nullopt : std::optional(path));
  if (!mount) return fail(mount.error());
  const std::string& mountpoint = mount.value().mountpoint;
  DaemonProbe probe = probe_daemon(mount.value());
  if (probe.dead) return detach_dead(mount.value(), arguments);
  const Ending ending = ending_of(mount.value(), std::move(probe.daemon));
  const auto unmounted = io::unmount(mountpoint, arguments.lazy ? io::Unmount::detach : io::Unmount::now);
  if (unmounted) return wait_for_daemon(mount.value(), ending, arguments);
  if (unmounted.error().errno_value() == EBUSY) {
    print_busy(mount.value());
    if (!ending.daemon) {
      std::fprintf(stderr,
                   "  The daemon does not answer. If it hangs, kill it (pgrep -a ckptfs) and run this again.\n");
    }
    return kFailed;
  }
  const bool others = geteuid() != 0;
  return fail(mountpoint,
              Error(unmounted.error().errno_value(),
                    unmounted.error().message() +
                        (others ? "; what root or somebody else mounted: sudo ckptfs umount " + mountpoint : "")));
}

}  // namespace

void add_umount(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<UmountArguments>();
  CLI::App* command = app.add_subcommand("umount", "Unmount, and wait until everything is written down");
  command->add_option("MOUNTPOINT", arguments->mountpoint, "The mount (default: the only one)");
  command->add_flag("--lazy", arguments->lazy,
                    "Detach the mount at once. The daemon serves the programs that still use it\n"
                    "until they are done, and then writes everything down");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "If the mount is busy, says who holds files open, and which containers have the mount. Fails if not everything\n"
      "could be written down. Removes a dead mount, too.\n"
      "Example:\n  ckptfs umount /ckpt");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli
