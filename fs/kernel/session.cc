#include "fs/kernel/session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "io/fuse_connection.h"
#include "io/log.h"
#include "io/mount_table.h"
#include "io/mutex.h"
#include "io/unmount.h"

namespace ckptfs::fs {

namespace {

// libfuse's last message, which says why a call failed.
io::Mutex fuse_log_mutex;
std::string last_fuse_message GUARDED_BY(fuse_log_mutex);

void log_fuse(fuse_log_level level, const char* format, va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof(text), format, arguments);
  std::string message(text);
  while (!message.empty() && message.back() == '\n') message.pop_back();
  if (level <= FUSE_LOG_ERR) {
    log::error("libfuse: {}", message);
  } else if (level <= FUSE_LOG_WARNING) {
    log::warn("libfuse: {}", message);
  } else {
    log::debug("libfuse: {}", message);
  }
  const io::MutexLock lock(fuse_log_mutex);
  last_fuse_message = std::move(message);
}

Error fuse_error(const std::string& what) {
  const io::MutexLock lock(fuse_log_mutex);
  return Error(EIO, last_fuse_message.empty() ? what : what + ": " + last_fuse_message);
}

// Owns a fuse_args.
class Arguments {
 public:
  Arguments() { fuse_opt_add_arg(&arguments_, "ckptfs"); }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments() {
    fuse_opt_free_args(&arguments_);
    std::free(options_);
  }
  bool option(const std::string& option) { return fuse_opt_add_opt_escaped(&options_, option.c_str()) == 0; }
  fuse_args* get() {
    if (fuse_opt_add_arg(&arguments_, "-o") != 0 || fuse_opt_add_arg(&arguments_, options_) != 0) return nullptr;
    return &arguments_;
  }

 private:
  fuse_args arguments_ = FUSE_ARGS_INIT(0, nullptr);
  char* options_ = nullptr;
};

std::optional<io::MountEntry> mounted_here(const std::string& mountpoint) {
  const auto mounts = io::mount_table();
  return mounts ? io::mounted_at(mounts.value(), mountpoint) : std::nullopt;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::make(const Options& options, const fuse_lowlevel_ops& ops, void* user_data) {
  fuse_set_log_func(log_fuse);
  io::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return last_error("eventfd");
  std::unique_ptr<Session> session(new Session(options, std::move(wake)));

  Arguments arguments;
  const bool added = (!options.for_others || arguments.option("allow_other")) &&
                     (!options.read_only || arguments.option("ro")) &&
                     (!options.no_exec || arguments.option("noexec")) && arguments.option("default_permissions") &&
                     arguments.option("subtype=ckptfs") && arguments.option("fsname=" + options.source);
  fuse_args* const fuse_arguments = added ? arguments.get() : nullptr;
  if (fuse_arguments == nullptr) return Error(ENOMEM);
  session->session_.reset(fuse_session_new(fuse_arguments, &ops, sizeof(ops), user_data));
  if (!session->session_) return fuse_error("no FUSE session");
  session->request_loop_.emplace(session->get(), RequestLoop::suitable());
  return session;
}

Result<> Session::mount() {
  if (fuse_session_mount(get(), options_.mountpoint.c_str()) != 0)
    return fuse_error("mounting at " + options_.mountpoint);
  // This is libfuse's own loop, since only its buffers can grow to the max_write agreed on. `init` ends it after one
  // request.
  const int result = fuse_session_loop(get());
  if (result < 0) return fuse_error("the kernel's FUSE_INIT could not be answered");
  fuse_session_reset(get());
  if (const auto mount = mounted_here(options_.mountpoint)) device_ = mount->device;
  stopper_ = std::thread([this] { wait_for_stop(); });
  return success();
}

Result<> Session::read_far_ahead() const {
  constexpr std::string_view kKibibytes = "4096";
  if (device_.empty()) return Error(ENOENT, "the mount is not in /proc/self/mountinfo");
  TRY_ASSIGN(const io::Fd file, io::open_at(AT_FDCWD, "/sys/class/bdi/" + device_ + "/read_ahead_kb", O_WRONLY));
  return io::write_full(file.get(), std::as_bytes(std::span(kKibibytes)), 0);
}

Session::~Session() {
  loop_ended_ = true;
  stop();
  if (stopper_.joinable()) stopper_.join();
  if (session_) fuse_session_unmount(get());
  if (left_to_thread_) [[maybe_unused]]
    const auto* const never_destroyed = session_.release();
}

Result<> Session::loop() {
  Result<> served = request_loop_->run();
  loop_ended_ = true;
  return served;
}

void Session::release() const {
  if (!forced_ || device_.empty()) return;
  const auto aborted = io::abort_connection(device_);
  if (!aborted && aborted.error().errno_value() != ENOENT) {
    log::warn("{}: the connection cannot be cut: {}", options_.mountpoint, aborted.error().message());
  }
}

void Session::stop() {
  const uint64_t one = 1;
  // The counter of an eventfd cannot be full here: a failure means that it is set already.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

bool Session::loop_ends_within(int milliseconds) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (!loop_ended_ && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return loop_ended_;
}

void Session::wait_for_stop() {
  pollfd waiting{wake_.get(), POLLIN, 0};
  while (::poll(&waiting, 1, -1) < 0 && errno == EINTR) {
  }
  if (loop_ended_) return;
  unmount_or_detach();
  if (loop_ends_within(kGraceMilliseconds)) return;
  log::warn("{}: files are still open; leaving all the same", options_.mountpoint);
  forced_ = true;
  request_loop_->stop();
}

void Session::unmount_or_detach() const {
  const std::string& mountpoint = options_.mountpoint;
  const auto mount = mounted_here(mountpoint);
  if (!device_.empty() && (!mount || mount->device != device_)) {  // by now another file system may be mounted there
    log::warn("{} is unmounted already, but still in use elsewhere; waiting up to {} s", mountpoint,
              kGraceMilliseconds / 1000);
    return;
  }
  if (const auto unmounted = io::unmount(mountpoint, io::Unmount::now); !unmounted) {
    log::warn("{} is in use ({}): detached; waiting up to {} s for its files to be closed", mountpoint,
              unmounted.error().message(), kGraceMilliseconds / 1000);
    const auto detached = io::unmount(mountpoint, io::Unmount::detach);
    if (!detached) log::error("{} stays mounted: {}", mountpoint, detached.error().message());
  }
}

}  // namespace ckptfs::fs
