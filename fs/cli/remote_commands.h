// The sub-commands of `ckptfs remote`, as commands.h has the commands. Each add_X adds one to the group.
#pragma once

#include "fs/cli/commands.h"

namespace ckptfs::fs::cli {

// These ask the daemon of a mount.
void add_remote_add(CLI::App& group, Chosen& chosen);
void add_remote_remove(CLI::App& group, Chosen& chosen);
void add_remote_status(CLI::App& group, Chosen& chosen);

// These ask the store alone, and need no mount.
void add_remote_mount(CLI::App& group, Chosen& chosen);
void add_remote_check(CLI::App& group, Chosen& chosen);
void add_remote_latest(CLI::App& group, Chosen& chosen);
void add_remote_ls(CLI::App& group, Chosen& chosen);
void add_remote_export(CLI::App& group, Chosen& chosen);
void add_remote_verify(CLI::App& group, Chosen& chosen);
void add_remote_policy(CLI::App& group, Chosen& chosen);
void add_remote_pin(CLI::App& group, Chosen& chosen);
void add_remote_rm(CLI::App& group, Chosen& chosen);
void add_remote_gc(CLI::App& group, Chosen& chosen);
void add_remote_du(CLI::App& group, Chosen& chosen);

}  // namespace ckptfs::fs::cli
