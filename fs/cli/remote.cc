// ckptfs remote: steps in an S3 store or on a shared file system. Here is the group; remote_commands.h has its
// commands.
#include <CLI/CLI.hpp>

#include "fs/cli/commands.h"
#include "fs/cli/remote_commands.h"

namespace ckptfs::fs::cli {

void add_remote(CLI::App& app, Chosen& chosen) {
  CLI::App* group = app.add_subcommand("remote", "Steps in an S3 store, or in a folder on a shared file system");
  group->require_subcommand(1);
  group->footer("`ckptfs remote COMMAND --help` shows each command with an example. The guide: docs/remote.md.");
  // In the order in which --help lists them.
  for (const auto add : {add_remote_add, add_remote_remove, add_remote_status, add_remote_check, add_remote_latest,
                         add_remote_ls, add_remote_mount, add_remote_export, add_remote_verify, add_remote_policy,
                         add_remote_pin, add_remote_rm, add_remote_gc, add_remote_du}) {
    add(*group, chosen);
  }
}

}  // namespace ckptfs::fs::cli
