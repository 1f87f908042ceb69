// The subcommands. Each add_X adds one to the command line. If the user chooses it, `chosen` becomes the function that
// runs it and returns the exit code (system.h). Main thread only.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace ckptfs::fs::cli {

using Chosen = std::function<int()>;

void add_mount(CLI::App& app, Chosen& chosen);
void add_umount(CLI::App& app, Chosen& chosen);
void add_save(CLI::App& app, Chosen& chosen);
void add_show(CLI::App& app, Chosen& chosen);
void add_du(CLI::App& app, Chosen& chosen);
void add_ls(CLI::App& app, Chosen& chosen);
void add_latest(CLI::App& app, Chosen& chosen);
void add_state(CLI::App& app, Chosen& chosen);
void add_wait(CLI::App& app, Chosen& chosen);
void add_watch(CLI::App& app, Chosen& chosen);
void add_marks(CLI::App& app, Chosen& chosen);  // pin, unpin, seal
void add_policy(CLI::App& app, Chosen& chosen);
void add_rm(CLI::App& app, Chosen& chosen);
void add_thin(CLI::App& app, Chosen& chosen);
void add_push(CLI::App& app, Chosen& chosen);
void add_fetch(CLI::App& app, Chosen& chosen);
void add_diff(CLI::App& app, Chosen& chosen);
void add_verify(CLI::App& app, Chosen& chosen);
void add_remote(CLI::App& app, Chosen& chosen);
void add_status(CLI::App& app, Chosen& chosen);
void add_fsck(CLI::App& app, Chosen& chosen);
void add_doctor(CLI::App& app, Chosen& chosen);
void add_debug(CLI::App& app, Chosen& chosen);
void add_completion(CLI::App& app, Chosen& chosen);
void add_help(CLI::App& app, Chosen& chosen);

}  // namespace ckptfs::fs::cli
