// ckptfs remote mount: the committed steps of a remote as a read-only file system.
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fs/cli/client.h"
#include "fs/cli/daemon_process.h"
#include "fs/cli/log.h"
#include "fs/cli/mount_options.h"
#include "fs/cli/mount_plan.h"
#include "fs/cli/remote_commands.h"
#include "fs/cli/remote_options.h"
#include "fs/cli/store_daemon.h"
#include "fs/cli/system.h"
#include "fs/control/http_server.h"
#include "fs/remote_mount/pages.h"
#include "fs/remote_mount/remote_mount.h"
#include "io/duration.h"
#include "io/image_file.h"
#include "io/log.h"

namespace ckptfs::fs::cli {
namespace {

using remote_mount::RemoteMount;
using remote_mount::RemoteMountOptions;

constexpr const char* kRemoteOptions =
    "cache=FOLDER, cache_size=100G, timeout=60s, endpoint=URL, region=NAME, profile=NAME, ca_file=FILE, path_style, "
    "allow_other, noexec, http=ADDRESS:PORT, http_token=FILE";

// The command line as given, and what -o says.
struct MountRemoteArguments {
  std::string url;
  std::string mountpoint;
  std::string cache;
  std::string cache_size = "100G";
  std::string timeout = "60s";
  io::S3Settings s3;
  std::vector<std::string> options;
  bool allow_other = false;
  bool no_exec = false;
  ParsedOptions http;  // its http and http_token
  bool foreground = false;
  bool as_json = false;
  std::string log;
  std::string log_level = "info";
};

struct RemotePlan {
  RemoteMountOptions mount;
  HttpOptions http;
  bool foreground = false;
  std::string log;
  std::string log_level;
};

Result<> apply_remote_option(MountRemoteArguments& arguments, const std::string& option) {
  const size_t equals = option.find('=');
  const std::string name = option.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
  const std::map<std::string, std::string*> texts{{"cache", &arguments.cache},
                                                  {"cache_size", &arguments.cache_size},
                                                  {"timeout", &arguments.timeout},
                                                  {"endpoint", &arguments.s3.endpoint},
                                                  {"region", &arguments.s3.region},
                                                  {"profile", &arguments.s3.profile},
                                                  {"ca_file", &arguments.s3.authorities},
                                                  {"http", &arguments.http.http},
                                                  {"http_token", &arguments.http.http_token}};
  const std::map<std::string, bool*> flags{{"path_style", &arguments.s3.path_style},
                                           {"allow_other", &arguments.allow_other},
                                           {"noexec", &arguments.no_exec}};
  const auto text = texts.find(name);
  if (text != texts.end() && !value.empty()) {
    *text->second = value;
  } else if (const auto flag = flags.find(option); flag != flags.end()) {
    *flag->second = true;
  } else if (option != "ro" && option != "exec" && !is_ignored_mount_option(option)) {
    const std::string why = option == "rw" ? "a remote is read-only; steps get there by a push" : "not understood";
    return Error(EINVAL, "-o " + option + ": " + why + "; the options are " + kRemoteOptions);
  }
  return success();
}

Result<RemotePlan> plan_of(MountRemoteArguments arguments) {
  for (const std::string& list : std::vector<std::string>(arguments.options)) {
    std::istringstream stream(list);
    for (std::string option; std::getline(stream, option, ',');) TRY(apply_remote_option(arguments, option));
  }
  RemotePlan plan;
  TRY(check_remote(arguments.url, arguments.s3));
  plan.mount.url = arguments.url;
  plan.mount.s3 = arguments.s3;
  if (!arguments.s3.authorities.empty()) {
    TRY_ASSIGN(plan.mount.s3.authorities, absolute_path(arguments.s3.authorities));
  }
  TRY_ASSIGN(plan.mount.mountpoint, absolute_path(arguments.mountpoint));
  if (!arguments.cache.empty()) {
    TRY_ASSIGN(plan.mount.cache, absolute_path(arguments.cache));
  }
  TRY_ASSIGN(plan.mount.cache_size, io::parse_size(arguments.cache_size));
  const auto time = io::parse_duration(arguments.timeout);
  if (!time || time.value().count() == 0)
    return Error(EINVAL, "--timeout: it must be a time of at least 1s, as in 60s");
  plan.mount.time = time.value();
  plan.mount.for_others = geteuid() == 0 || arguments.allow_other;
  plan.mount.no_exec = arguments.no_exec;
  plan.mount.before_mount = EndSignals::hold;
  TRY_ASSIGN(plan.http, plan_http(arguments.http));
  if (!arguments.log.empty()) {
    TRY_ASSIGN(plan.log, absolute_path(arguments.log));
  }
  for (const std::string* const path : {&plan.mount.cache, &plan.log}) {
    if (path->empty() || !io::lies_within(*path, plan.mount.mountpoint)) continue;
    return Error(EINVAL, *path + ": it lies below the mountpoint, so the daemon would wait for itself");
  }
  plan.foreground = arguments.foreground;
  plan.log_level = arguments.log_level;
  return plan;
}

// The control socket and, if asked for, HTTP.
class RemoteServers {
 public:
  RemoteServers(RemoteMount& mount, const RemotePlan& plan, const Outcome& outcome)
      : socket_(socket_folder(plan.mount.for_others) + "/" + mount.id() + ".sock"),
        control_(socket_, plan.mount.for_others ? ControlServer::Audience::everybody : ControlServer::Audience::owner),
        http_(plan.http) {
    mount.set_socket(socket_);
    control_.add("status", ControlServer::Pace::quick, [this, &mount](const Peer&, const nlohmann::json&) {
      nlohmann::json status = mount.status();
      status["http"] = listens_ ? http_.address() : "";
      return Result<nlohmann::json>(status);
    });
    add_outcome(control_, outcome);
    refuse_others(mount);
    listens_ = !plan.http.address.empty();
    if (listens_) remote_mount::add_pages(http_, mount);
  }

  Result<> start() {
    if (listens_) {
      TRY(http_.listen());
      TRY(http_.start());
      log::info("http://{}/ has the page, /metrics the metrics", http_.address());
    }
    TRY(control_.start());
    log::info("ckptfs {}, pid {}, control socket {}", CKPTFS_VERSION, getpid(), socket_);
    return success();
  }
  void stop() {
    http_.stop();
    control_.stop();
  }

 private:
  // What is about a store, and is asked of this mount by mistake.
  void refuse_others(const RemoteMount& mount) {
    const std::string url = mount.status()["remote"].value("url", "");
    for (const char* const command : {"ls", "show", "du", "diff", "save", "rm", "thin", "policy", "verify", "push",
                                      "remote_add", "remote_remove", "remote_status", "fetch_begin", "begin"}) {
      control_.add(command, ControlServer::Pace::quick, [url](const Peer&, const nlohmann::json&) {
        return Result<nlohmann::json>(
            Error(EOPNOTSUPP,
                  "this is a mounted remote, which has no store: `ckptfs remote ls " + url + "` lists its steps"));
      });
    }
  }

  const std::string socket_;
  ControlServer control_;
  HttpServer http_;
  bool listens_ = false;
};

Result<> serve_remote(const RemotePlan& plan, const Outcome& outcome, const StartReport& report) {
  TRY_ASSIGN(const std::unique_ptr<RemoteMount> mount, RemoteMount::start(plan.mount));
  RemoteServers servers(*mount, plan, outcome);
  const EndSignals signals(*mount);
  const Result<> listening = servers.start();
  listening ? report(success()) : mount->stop();
  const Result<> ended = mount->run();
  if (prctl(PR_SET_NAME, kLeavingName, 0, 0, 0) != 0) log::warn("PR_SET_NAME: {}", last_error().message());
  servers.stop();
  return listening ? ended : listening;
}

int serve(const RemotePlan& plan, const StartReport& report) {
  const StartReport with_words = [&](const Result<>& started) {
    report(started ? started : Result<>(with_way_out(started.error())));
  };
  return run_daemon(with_words, [&plan](const Outcome& outcome, const StartReport& note_start) -> Result<> {
    TRY(serve_remote(plan, outcome, note_start));
    log::info("{} is unmounted from {}", plan.mount.url, plan.mount.mountpoint);
    return success();
  });
}

int mount_as_daemon(const RemotePlan& plan) {
  return daemonize(plan.mount.url, [&plan](const StartReport& report) {
    if (auto log = open_log(plan.log, false, plan.log_level); !log) {
      report(log);
      return static_cast<int>(kFailed);
    }
    return serve(plan, report);
  });
}

int mount_in_foreground(const RemotePlan& plan) {
  if (auto log = open_log(plan.log, true, plan.log_level); !log) return fail(log.error());
  return serve(plan, [&](const Result<>& started) {
    if (!started && !plan.log.empty()) fail(plan.mount.url, started.error());
  });
}

int run_remote_mount(const MountRemoteArguments& arguments) {
  release_hung_mounts();
  const auto plan = plan_of(arguments);
  if (!plan) return fail_remote(arguments.url, plan.error());
  if (auto clear = clear_mountpoint(plan.value().mount.mountpoint); !clear) return fail(clear.error());
  const int code = plan.value().foreground ? mount_in_foreground(plan.value()) : mount_as_daemon(plan.value());
  return code == kSuccess && arguments.as_json ? print_mounted(plan.value().mount.mountpoint) : code;
}

}  // namespace

void add_remote_mount(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<MountRemoteArguments>();
  CLI::App* command = group.add_subcommand("mount", "Mount the steps of a remote, read-only, on any machine");
  command->add_option("URL", arguments->url, "s3://BUCKET/PREFIX, or file:///FOLDER on a shared file system")
      ->required();
  command->add_option("MOUNTPOINT", arguments->mountpoint, "An existing folder")->required();
  command->add_option("--cache", arguments->cache, "Keep what was read in this folder, which holds nothing else");
  command->add_option("--cache-size", arguments->cache_size, "At most so much")->capture_default_str();
  command->add_option("--timeout", arguments->timeout, "Then a read of what cannot be had is an error (EIO)")
      ->capture_default_str();
  add_s3_options(*command, arguments->s3);
  command->add_option("-o", arguments->options, std::string("Comma list of ") + kRemoteOptions)
      ->option_text("LIST")
      ->type_size(1)
      ->allow_extra_args(false);
  auto* foreground =
      command->add_flag("-f,--foreground", arguments->foreground, "Stay in the foreground, log to stderr");
  command->add_option("--log", arguments->log, "Log to this file (default: syslog, with -f stderr)");
  command->add_option("--log-level", arguments->log_level, kLogLevels)
      ->check([](const std::string& level) -> std::string {
        return is_log_level(level) ? "" : "one of " + std::string(kLogLevels);
      });
  command->add_flag("--json", arguments->as_json, "Print as JSON what `status` prints")->excludes(foreground);
  command->footer(
      "MOUNTPOINT/TAG is a whole step, MOUNTPOINT/@I/TAG what slot I wrote of it, MOUNTPOINT/views/TAG its weights as\n"
      "files. Only what is read is fetched. An ordinary user can mount, too. It ends with `ckptfs umount MOUNTPOINT`.\n"
      "Examples:\n"
      "  ckptfs remote mount s3://bucket/run7 /remote\n"
      "  ckptfs remote mount file:///lustre/run7 /remote --cache /var/cache/ckptfs --cache-size 200G\n"
      "  /etc/fstab:  s3://bucket/run7  /remote  ckptfs  ro,nofail,_netdev,cache=/var/cache/ckptfs  0 0");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run_remote_mount(*arguments); }; });
}

}  // namespace ckptfs::fs::cli
