// ckptfs mount: mounts a store.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/daemon.h"
#include "fs/cli/format.h"
#include "fs/cli/log.h"
#include "fs/cli/mount_options.h"
#include "fs/cli/mount_plan.h"
#include "fs/cli/store_daemon.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

int run_in_foreground(const MountPlan& plan) {
  if (auto log = open_log(plan.log, true, plan.log_level); !log) return fail(log.error());
  // Without --log the log is stderr, and has what serve() reports already.
  return serve(plan, [&](const Result<>& started) {
    if (!started && !plan.log.empty()) fail(plan.store, started.error());
  });
}

int run_as_daemon(const MountPlan& plan) {
  return daemonize(plan.store, [&plan](const StartReport& report) {
    if (auto log = open_log(plan.log, false, plan.log_level); !log) {
      report(log);
      return static_cast<int>(kFailed);
    }
    return serve(plan, report);
  });
}

bool is_mounted(const std::string& store) {
  const auto mounts = io::mount_table();
  return mounts && std::ranges::any_of(mounts.value(), [&](const io::MountEntry& mount) {
           return io::is_ckptfs(mount) && mount.source == store;
         });
}

// umount(8) returns before the daemon has written everything down. So waits for a daemon that is leaving. Does not wait
// for a daemon that still serves: the error names it when the store cannot be opened. A daemon that was unmounted this
// moment may not have noticed yet, so it is asked again for a while.
void wait_for_last_daemon(const std::string& store) {
  constexpr int kTries = 50;
  constexpr std::chrono::milliseconds kPause{100};
  for (int i = 0; i < kTries; ++i) {
    const auto daemon = daemon_of_store(store);
    if (!daemon) return;
    if (daemon->killed || daemon->leaving) {
      wait_for_end(daemon->handle, [&] {
        std::fprintf(stderr, "ckptfs: %s: waiting for the daemon (pid %d) that had it; it %s\n",
                     printable(store).c_str(), daemon->handle.pid,
                     daemon->killed ? "was killed and has not ended yet" : "is writing everything down");
        return true;
      });
      return;
    }
    if (is_mounted(store)) return;
    std::this_thread::sleep_for(kPause);
  }
}

int run(const MountArguments& arguments) {
  release_hung_mounts();
  const auto plan = plan_mount(arguments);
  if (!plan) {
    fail(plan.error());
    return plan.error().errno_value() == EINVAL ? kUsage : kFailed;
  }
  if (auto place = check_place_of_store(plan.value()); !place) return fail(place.error());
  if (auto may = check_user(plan.value()); !may) return fail(may.error());
  if (auto apart = check_nesting(plan.value()); !apart) return fail(apart.error());
  if (auto clear = clear_mountpoint(plan.value().mountpoint); !clear) return fail(clear.error());
  wait_for_last_daemon(plan.value().store);
  const int code = plan.value().foreground ? run_in_foreground(plan.value()) : run_as_daemon(plan.value());
  if (code != kSuccess || plan.value().foreground) return code;
  if (arguments.as_json) return print_mounted(plan.value().mountpoint);
  std::printf("%s is mounted at %s\n", printable(plan.value().store).c_str(),
              printable(plan.value().mountpoint).c_str());
  return kSuccess;
}

}  // namespace

void add_mount(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<MountArguments>();
  CLI::App* command = app.add_subcommand("mount", "Mount a store (made at its first mount)");
  command->add_option("STORE", arguments->store, "Folder that holds everything")->required();
  command->add_option("MOUNTPOINT", arguments->mountpoint, "An existing folder")->required();
  auto* foreground =
      command->add_flag("-f,--foreground", arguments->foreground, "Stay in the foreground, log to stderr");
  command->add_option("--image", arguments->image,
                      "Make STORE/image.xfs of this size (K, M, G, T; at least 512M) and put the store in it;\n"
                      "later mounts find it by themselves");
  command->add_flag("--sparse", arguments->sparse, "Do not allocate the image in full: a full disk then breaks it");
  command->add_option("--sector", arguments->sector, "The image's logical sector, 512 or 4096")
      ->check(CLI::IsMember({512, 4096}));
  command->add_option("-o", arguments->options, std::string("Comma list of ") + kMountOptions)
      ->option_text("LIST")
      ->type_size(1)
      ->allow_extra_args(false);
  command->add_option("--log", arguments->log, "Log to this file (default: syslog, with -f stderr)");
  command->add_option("--log-level", arguments->log_level, kLogLevels)
      ->check([](const std::string& level) -> std::string {
        return is_log_level(level) ? "" : "one of " + std::string(kLogLevels);
      });
  command->add_flag("--json", arguments->as_json, "Print as JSON what `status` prints")->excludes(foreground);
  command->footer(
      "Returns when the mount is there; ends with `ckptfs umount MOUNTPOINT`. A dead mount at MOUNTPOINT is replaced.\n"
      "An ordinary user can mount, too (fusermount3; an XFS of their own): every byte then goes through the daemon, "
      "and\n"
      "other users see nothing of it, unless -o allow_other and /etc/fuse.conf let them.\n"
      "Examples:\n"
      "  ckptfs mount /data/store /ckpt\n"
      "  ckptfs mount -o http=127.0.0.1:9180 /data/store /ckpt\n"
      "  ckptfs mount --image 200G -o uid=1000,gid=1000 --log /var/log/ckptfs.log /data/store /ckpt\n"
      "  /etc/fstab:  /data/store  /ckpt  ckptfs  defaults,nofail  0 0");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli
