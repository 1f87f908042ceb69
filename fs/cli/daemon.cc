#include "fs/cli/daemon.h"

#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "fs/cli/outcome.h"
#include "fs/cli/store_daemon.h"
#include "fs/cli/system.h"
#include "fs/control/blob_commands.h"
#include "fs/control/commands.h"
#include "fs/control/content_commands.h"
#include "fs/control/http_server.h"
#include "fs/control/page.h"
#include "fs/control/policy_commands.h"
#include "fs/control/remote_commands.h"
#include "fs/control/server.h"
#include "fs/mount/mount.h"
#include "io/control_message.h"
#include "io/image.h"
#include "io/image_file.h"
#include "io/lease.h"
#include "io/log.h"

namespace ckptfs::fs::cli {
namespace {

constexpr rlim_t kWantedDescriptors = 1 << 20;

// The mount that the signal handler ends. The handlers are removed before the mount is destroyed.
std::atomic<Mount*> served{nullptr};

void end_served(int) {
  if (Mount* mount = served.load()) mount->stop();
}

// The three signals end the mount cleanly while this lives.
class EndSignals {
 public:
  explicit EndSignals(Mount& mount) {
    served = &mount;
    install(end_served);
  }
  ~EndSignals() {
    install(SIG_IGN);
    served = nullptr;
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

 private:
  static void install(void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaction(signal, &action, nullptr);
  }
};

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return log::warn("RLIMIT_NOFILE: {}", last_error().message());
  rlim_t wanted = kWantedDescriptors;
  if (auto most = read_text("/proc/sys/fs/nr_open")) {
    wanted = std::min<rlim_t>(wanted, std::strtoull(most.value().c_str(), nullptr, 10));
  }
  limit.rlim_max = std::max(limit.rlim_max, wanted);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  log::warn("RLIMIT_NOFILE to {}: {}", limit.rlim_cur, last_error().message());
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) log::warn("RLIMIT_NOFILE: {}", last_error().message());
}

// When memory is short, the kernel writes back through the daemon. It must not wait for the daemon while the daemon
// waits for memory, and it must not kill the daemon.
void prepare_process() {
  // A daemon that is started as mount.ckptfs would have that name, and `ckptfs umount` would not recognize it
  // (daemon_probe.cc).
  if (prctl(PR_SET_NAME, "ckptfs", 0, 0, 0) != 0) log::warn("PR_SET_NAME: {}", last_error().message());
  if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) != 0) log::warn("PR_SET_IO_FLUSHER: {}", last_error().message());
  std::ofstream score("/proc/self/oom_score_adj");
  score << -900 << std::flush;
  if (!score) log::warn("/proc/self/oom_score_adj to -900: {}", last_error().message());
  raise_descriptor_limit();
  std::signal(SIGPIPE, SIG_IGN);
  io::ignore_lease_signals();
}

// No other daemon uses the image until the descriptor is closed, not even while this daemon unmounts the image.
Result<io::Fd> lock_image(const std::string& store) {
  const std::string image = store + "/" + io::kImageName;
  TRY_ASSIGN(io::Fd file, io::open_at(AT_FDCWD, image, O_RDONLY));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return last_error(image);
  return Error(EBUSY, image + ": the store is in use by another ckptfs; unmount it first");
}

// The image under the store, if there is one. It is unmounted at the end, even if another daemon has mounted it.
class ServedImage {
 public:
  static Result<ServedImage> open(const MountPlan& plan) {
    ServedImage result;
    result.folder_ = plan.store;
    if (io::has_image(plan.store)) {
      TRY_ASSIGN(result.lock_, lock_image(plan.store));
    }
    if (plan.image_size) {
      TRY_ASSIGN(result.image_, io::mount_image(plan.store, {*plan.image_size, plan.sparse, plan.sector}));
    } else if (io::has_image(plan.store)) {
      TRY_ASSIGN(result.image_, io::find_image(plan.store));
    } else {
      return result;
    }
    result.folder_ = result.image_->folder;
    if (!result.lock_) {  // the image was made this moment
      TRY_ASSIGN(result.lock_, lock_image(plan.store));
    }
    log::info("image {} on {} at {}, {}", result.image_->image, result.image_->device, result.image_->folder,
              result.image_->direct ? "direct I/O" : "buffered: the loop driver takes no direct I/O here");
    return result;
  }
  const std::string& folder() const { return folder_; }
  Result<> close() { return image_ ? io::unmount_image(*image_) : Result<>(success()); }

 private:
  std::string folder_;
  std::optional<io::MountedImage> image_;
  io::Fd lock_;
};

MountOptions mount_options(const MountPlan& plan, const std::string& store_folder) {
  MountOptions options;
  options.store = store_folder;
  if (store_folder != plan.store) options.image = plan.store + "/" + io::kImageName;
  options.store_name = plan.store;
  options.mountpoint = plan.mountpoint;
  options.passthrough = plan.options.passthrough;
  options.odirect = plan.options.odirect;
  options.uid = plan.options.uid;
  options.gid = plan.options.gid;
  options.quiet_seconds = plan.options.quiet_seconds;
  options.scrub_seconds = plan.options.scrub_seconds;
  options.adopt = plan.options.adopt;
  options.show_views = plan.options.show_views;
  options.read_only = plan.options.read_only;
  options.no_exec = plan.options.no_exec;
  options.for_others = geteuid() == 0 || plan.options.allow_other;
  return options;
}

// The folder of a mount's control socket. If no other user can enter the mount, no other user can connect, either.
std::string socket_folder(bool for_others) {
  if (geteuid() == 0) return "/run/ckptfs";
  const char* const folder = std::getenv("XDG_RUNTIME_DIR");
  struct stat st {};
  const bool own = folder != nullptr && *folder == '/' && ::stat(folder, &st) == 0 && st.st_uid == geteuid();
  if (own && !for_others) return std::string(folder) + "/ckptfs";
  return "/tmp/ckptfs-" + std::to_string(geteuid()) + (for_others ? "-shared" : "");
}

// The servers beside the file system: the control socket and, if asked for, HTTP.
class Servers {
 public:
  explicit Servers(const Outcome& outcome) : outcome_(outcome) {}

  Result<> start(Mount& mount, const HttpOptions& http) {
    Filesystem& fs = mount.filesystem();
    if (!http.address.empty()) {
      page_ = std::make_unique<PageState>(fs);
      http_ = std::make_unique<HttpServer>(http);
      add_pages(*http_, fs, *page_);
      TRY(http_->listen());
      fs.http_address = http_->address();
      TRY(http_->start());
      log::info("http://{}/ has the page, /metrics the metrics{}", http_->address(),
                http.token.empty() ? "; every user of this machine may look" : "; by token");
    }
    const bool for_others = mount.options().for_others;
    fs.socket_path = socket_folder(for_others) + "/" + mount.store().id() + ".sock";
    using Audience = ControlServer::Audience;
    control_ = std::make_unique<ControlServer>(fs.socket_path, for_others ? Audience::everybody : Audience::owner);
    add_commands(*control_, fs);
    add_content_commands(*control_, mount.store());
    add_policy_commands(*control_, fs);
    add_remote_commands(*control_, fs);
    add_blob_commands(*control_, fs);
    control_->add_for_files("outcome", [this](const Peer& peer, const nlohmann::json&) { return outcome_for(peer); });
    if (mount.options().read_only) refuse_changes();
    TRY(control_->start());
    log::info("ckptfs {}, pid {}, control socket {}", CKPTFS_VERSION, getpid(), control_->socket_path());
    return success();
  }
  void stop() {
    if (http_) http_->stop();
    if (control_) control_->stop();
  }

 private:
  // Changes through the mount are refused by the kernel.
  void refuse_changes() {
    for (const char* const command : {"save", "rm", "thin", "begin", "freeze", "commit"}) {
      control_->add(command, ControlServer::Pace::quick, [](const Peer&, const nlohmann::json&) {
        return Result<nlohmann::json>(Error(EROFS, "the store is mounted read-only (-o ro)"));
      });
    }
  }

  // The outcome is for those who may unmount.
  Result<io::ControlReply> outcome_for(const Peer& peer) const {
    if (peer.credentials.uid != 0 && peer.credentials.uid != geteuid()) return Error(EPERM);
    io::ControlReply reply;
    TRY_ASSIGN(io::Fd reader, outcome_.reader());
    reply.result = nlohmann::json::object();
    reply.descriptors.push_back(std::move(reader));
    return reply;
  }

  const Outcome& outcome_;
  std::unique_ptr<PageState> page_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<ControlServer> control_;
};

// Opens the store, whose image is mounted already, serves it, and closes it. Errors of the start go to `report` only,
// later errors to the log.
Result<> serve_store(const MountPlan& plan, const std::string& store_folder, const Outcome& outcome,
                     const StartReport& report) {
  Servers servers(outcome);
  MountOptions options = mount_options(plan, store_folder);
  options.before_close = [&servers] {
    if (prctl(PR_SET_NAME, kLeavingName, 0, 0, 0) != 0) log::warn("PR_SET_NAME: {}", last_error().message());
    servers.stop();
  };
  TRY_ASSIGN(const std::unique_ptr<Mount> mount, Mount::start(options));
  const EndSignals signals(*mount);
  Result<> listening = servers.start(*mount, plan.http);
  if (listening) {
    report(success());
  } else {
    mount->stop();
  }
  Result<> served_to_end = mount->run();
  servers.stop();
  if (!listening) return listening;
  return served_to_end;
}

}  // namespace

int serve(const MountPlan& plan, const StartReport& report) {
  bool started = false;
  const StartReport note_start = [&](const Result<>& outcome) {
    started = outcome.has_value();
    report(outcome);
  };
  const auto failed = [&](const Error& error) {
    log::error("{}", error.message());
    if (!started) report(error);
    return kFailed;
  };

  prepare_process();
  const auto outcome = Outcome::make();
  if (!outcome) return failed(outcome.error());
  auto image = ServedImage::open(plan);
  if (!image) return failed(image.error());
  const Result<> ended = serve_store(plan, image.value().folder(), outcome.value(), note_start);
  const Result<> closed = image.value().close();
  if (!closed) log::error("the image stays mounted: {}", closed.error().message());
  if (const auto told = outcome.value().tell(ended ? closed : ended); !told) log::error("{}", told.error().message());
  if (!ended) return failed(ended.error());
  log::info("{} is unmounted from {}", plan.store, plan.mountpoint);
  return closed ? kSuccess : kFailed;
}

}  // namespace ckptfs::fs::cli
