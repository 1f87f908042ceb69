#include "fs/cli/daemon.h"

#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <memory>

#include "fs/cli/daemon_process.h"
#include "fs/cli/outcome.h"
#include "fs/cli/store_daemon.h"
#include "fs/cli/system.h"
#include "fs/control/blob_commands.h"
#include "fs/control/commands.h"
#include "fs/control/content_commands.h"
#include "fs/control/event_commands.h"
#include "fs/control/http_server.h"
#include "fs/control/page.h"
#include "fs/control/policy_commands.h"
#include "fs/control/remote_commands.h"
#include "fs/control/server.h"
#include "fs/mount/mount.h"
#include "io/image.h"
#include "io/image_file.h"
#include "io/log.h"

namespace ckptfs::fs::cli {
namespace {

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
  static_cast<GivenOptions&>(options) = plan.options;
  options.store = store_folder;
  if (store_folder != plan.store) options.image = plan.store + "/" + io::kImageName;
  options.store_name = plan.store;
  options.mountpoint = plan.mountpoint;
  options.for_others = geteuid() == 0 || plan.options.allow_other;
  return options;
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
    add_event_commands(*control_, fs);
    add_remote_commands(*control_, fs);
    add_blob_commands(*control_, fs);
    add_outcome(*control_, outcome_);
    for (const char* const command : {"save", "rm", "thin", "begin", "freeze", "commit", "fetch_begin", "fetch_commit",
                                      "accept", "remote_add", "remote_remove"}) {
      control_->guard(command, [&fs] { return fs.check_writable(); });
    }
    TRY(control_->start());
    log::info("ckptfs {}, pid {}, control socket {}", CKPTFS_VERSION, getpid(), control_->socket_path());
    return success();
  }
  void stop() {
    if (http_) http_->stop();
    if (control_) control_->stop();
  }

 private:
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
  options.before_mount = EndSignals::hold;
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
  return run_daemon(report, [&plan](const Outcome& outcome, const StartReport& note_start) -> Result<> {
    TRY_ASSIGN(auto image, ServedImage::open(plan));
    const Result<> ended = serve_store(plan, image.folder(), outcome, note_start);
    Result<> closed = image.close();
    if (!closed) log::error("the image stays mounted: {}", closed.error().message());
    TRY(ended);
    log::info("{} is unmounted from {}", plan.store, plan.mountpoint);
    return closed;
  });
}

}  // namespace ckptfs::fs::cli
