#include "fs/cli/daemon_process.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "fs/cli/system.h"
#include "io/control_message.h"
#include "io/fd.h"
#include "io/lease.h"
#include "io/log.h"

namespace ckptfs::fs::cli {
namespace {

constexpr rlim_t kWantedDescriptors = 1 << 20;

// What the signal handler ends. The handlers are removed before the mount is destroyed.
std::atomic<void (*)(void*)> end_mount{nullptr};
std::atomic<void*> served_mount{nullptr};

std::atomic<bool> end_noted{false};  // a signal has come before there was a mount to end

void note_end(int) { end_noted = true; }

void end_served(int) {
  if (void* const mount = served_mount.load()) end_mount.load()(mount);
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaction(signal, &action, nullptr);
}

// Everybody may make folders in /tmp. Where another user has taken the name, a new one is made, which nobody could
// guess. Clients ask the mount for its socket.
std::string own_folder_in_tmp(const std::string& name, mode_t mode) {
  struct stat st {};
  if (::lstat(name.c_str(), &st) != 0 || st.st_uid == geteuid()) return name;
  std::string other = name + "-XXXXXX";
  const bool made = ::mkdtemp(other.data()) != nullptr && ::chmod(other.c_str(), mode) == 0;
  return made ? other : name;  // what is wrong with it is said when the socket is made
}

// To `wanted`, or as high as this process may.
void raise_limit(__rlimit_resource_t resource, const char* name, rlim_t wanted) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return log::warn("{}: {}", name, last_error().message());
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_max = std::max(limit.rlim_max, wanted);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(resource, &limit) == 0) return;
  const Error refused = last_error();
  getrlimit(resource, &limit);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(resource, &limit) != 0) return log::warn("{}: {}", name, last_error().message());
  log::warn("{} is {}, since it cannot be raised further: {}", name, limit.rlim_cur, refused.message());
}

// The limits of the shell that mounts are meant for one program, but the daemon writes the files of all users.
void raise_limits() {
  rlim_t descriptors = kWantedDescriptors;
  if (auto most = io::read_file("/proc/sys/fs/nr_open")) {
    descriptors = std::min<rlim_t>(descriptors, std::strtoull(most.value().c_str(), nullptr, 10));
  }
  raise_limit(RLIMIT_NOFILE, "RLIMIT_NOFILE (ulimit -n)", descriptors);
  raise_limit(RLIMIT_FSIZE, "RLIMIT_FSIZE (ulimit -f)", RLIM_INFINITY);
  raise_limit(RLIMIT_CPU, "RLIMIT_CPU (ulimit -t)", RLIM_INFINITY);
  raise_limit(RLIMIT_AS, "RLIMIT_AS (ulimit -v)", RLIM_INFINITY);
  raise_limit(RLIMIT_DATA, "RLIMIT_DATA (ulimit -d)", RLIM_INFINITY);
  std::signal(SIGXFSZ, SIG_IGN);  // where the limit stays, a write beyond it is EFBIG
}

}  // namespace

void prepare_process() {
  // A daemon that is started as mount.ckptfs would have that name, and `ckptfs umount` would not recognize it
  // (daemon_probe.cc).
  if (prctl(PR_SET_NAME, "ckptfs", 0, 0, 0) != 0) log::warn("PR_SET_NAME: {}", last_error().message());
  if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) != 0) log::warn("PR_SET_IO_FLUSHER: {}", last_error().message());
  std::ofstream score("/proc/self/oom_score_adj");
  score << -900 << std::flush;
  if (!score) log::warn("/proc/self/oom_score_adj to -900: {}", last_error().message());
  raise_limits();
  std::signal(SIGPIPE, SIG_IGN);
  io::ignore_lease_signals();
}

int run_daemon(const StartReport& report, const std::function<Result<>(const Outcome&, const StartReport&)>& body) {
  bool started = false;
  const StartReport note_start = [&](const Result<>& outcome) {
    started = outcome.has_value();
    report(outcome);
  };
  const auto failed = [&](const Error& error) {
    log::error("{}", error.message());
    if (!started) report(error);
    return static_cast<int>(kFailed);
  };
  prepare_process();
  const auto outcome = Outcome::make();
  if (!outcome) return failed(outcome.error());
  const Result<> ended = body(outcome.value(), note_start);
  if (const auto told = outcome.value().tell(ended); !told) log::error("{}", told.error().message());
  return ended ? static_cast<int>(kSuccess) : failed(ended.error());
}

EndSignals::EndSignals(Stop stop, void* mount) {
  end_mount = stop;
  served_mount = mount;
  install(end_served);
  if (end_noted.exchange(false)) stop(mount);
}

void EndSignals::hold() { install(note_end); }

EndSignals::~EndSignals() {
  install(SIG_IGN);
  served_mount = nullptr;
}

std::string socket_folder(bool for_others) {
  const bool is_root = geteuid() == 0 && ::access("/run", W_OK) == 0;  // not of a user namespace alone
  if (is_root) return "/run/ckptfs";
  const char* const folder = std::getenv("XDG_RUNTIME_DIR");
  struct stat st {};
  const bool own = folder != nullptr && *folder == '/' && ::stat(folder, &st) == 0 && st.st_uid == geteuid();
  if (own && !for_others) return std::string(folder) + "/ckptfs";
  const std::string name = "/tmp/ckptfs-" + std::to_string(geteuid());
  return for_others ? own_folder_in_tmp(name + "-shared", 0755) : own_folder_in_tmp(name, 0700);
}

void add_outcome(ControlServer& server, const Outcome& outcome) {
  server.add_for_files("outcome", [&outcome](const Peer& peer, const nlohmann::json&) -> Result<io::ControlReply> {
    if (peer.credentials.uid != 0 && peer.credentials.uid != geteuid()) return Error(EPERM);
    io::ControlReply reply;
    TRY_ASSIGN(io::Fd reader, outcome.reader());
    reply.result = nlohmann::json::object();
    reply.descriptors.push_back(std::move(reader));
    return reply;
  });
}

}  // namespace ckptfs::fs::cli
