// What the daemons of all kinds of mounts share: how their process is prepared, how it is ended, and where it answers.
#pragma once

#include <string>

#include "fs/cli/outcome.h"
#include "fs/control/server.h"

namespace ckptfs::fs::cli {

// When memory is short, the kernel writes back through the daemon. It must not wait for the daemon while the daemon
// waits for memory, and it must not kill the daemon. To be called while the process has one thread.
void prepare_process();

// SIGTERM, SIGINT and SIGHUP end the mount cleanly while this lives; then they are ignored. Only one at a time.
class EndSignals {
 public:
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

// The folder of a mount's control socket. If no other user can enter the mount, no other user can connect, either.
std::string socket_folder(bool for_others);

// Adds the command "outcome", for those who may unmount. `outcome` outlives the server's stop().
void add_outcome(ControlServer& server, const Outcome& outcome);

}  // namespace ckptfs::fs::cli
