// What the daemons of all kinds of mounts share: how their process is prepared, how it is ended, and where it answers.
#pragma once

#include <functional>
#include <string>

#include "fs/cli/outcome.h"
#include "fs/control/server.h"

namespace ckptfs::fs::cli {

// Called once: with success when the mount is there, or with the reason why it is not.
using StartReport = std::function<void(const Result<>&)>;

// Forks a process that runs `body` as a daemon: in its own session, in folder /, without the caller's descriptors, and
// with stdio on /dev/null once it has reported success. Waits for the report. Returns kSuccess, or prints the error and
// returns kFailed. To be called while the process has one thread.
int daemonize(const std::string& name, const std::function<int(const StartReport&)>& body);

// When memory is short, the kernel writes back through the daemon. It must not wait for the daemon while the daemon
// waits for memory, and it must not kill the daemon. To be called while the process has one thread.
void prepare_process();

// SIGTERM, SIGINT and SIGHUP end the mount cleanly while this lives; then they are ignored. Only one at a time.
class EndSignals {
 public:
  // From here on a signal does not end the process. It is noted, and the next EndSignals ends its mount at once. To be
  // called before the kernel mounts anything: a process that ends after that leaves a mount without a daemon.
  static void hold();
  // `mount.stop()` must be async-signal-safe.
  template <class Mounted>
  explicit EndSignals(Mounted& mount) : EndSignals([](void* of) { static_cast<Mounted*>(of)->stop(); }, &mount) {}
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

 private:
  using Stop = void (*)(void*);
  EndSignals(Stop stop, void* mount);
};

// Prepares the process, and runs `body`, which serves until the mount ends. It reports its start, and nothing else.
// Errors of the start go to `report`, all to the log, and the outcome to who unmounts. Returns the exit code.
int run_daemon(const StartReport& report, const std::function<Result<>(const Outcome&, const StartReport&)>& body);

// The folder of a mount's control socket. If no other user can enter the mount, no other user can connect, either.
std::string socket_folder(bool for_others);

// Adds the command "outcome", for those who may unmount. `outcome` outlives the server's stop().
void add_outcome(ControlServer& server, const Outcome& outcome);

}  // namespace ckptfs::fs::cli
