// The command `ckptfs`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "fs/cli/command_line.h"
#include "fs/cli/mount_options.h"
#include "fs/cli/system.h"
#include "io/core_files.h"

namespace ckptfs::fs::cli {
namespace {

int run(int argc, char** argv) {
  CLI::App app{"ckptfs keeps training checkpoints: a mount where a save is a clone, not a copy.", "ckptfs"};
  app.set_version_flag("--version", "ckptfs " CKPTFS_VERSION);
  app.require_subcommand(1);
  app.footer(
      "First steps:\n"
      "  ckptfs doctor /data                      what this machine has and lacks\n"
      "  ckptfs mount /data/store /ckpt           on XFS with reflink\n"
      "  ckptfs mount --image 200G /data/store /ckpt   anywhere else\n"
      "`ckptfs help COMMAND` shows each command with an example.");
  Chosen chosen;
  add_all_commands(app, chosen);

  std::vector<std::string> arguments = normalize_arguments({argv, argv + argc});
  if (arguments.size() == 2 && arguments[1] == "help") arguments[1] = "--help";
  try {
    // CLI11 takes the arguments in reverse order.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend() - 1));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(e);  // --help, --version
    std::string command = "ckptfs";
    for (auto used = app.get_subcommands(); !used.empty(); used = used.front()->get_subcommands()) {
      command += " " + used.front()->get_name();
    }
    const std::string unknown = unknown_command(app, {arguments.begin() + 1, arguments.end()});
    std::fprintf(stderr, "ckptfs: %s; see `%s --help`\n", unknown.empty() ? e.what() : unknown.c_str(),
                 command.c_str());
    return kUsage;
  }
  return chosen();
}

}  // namespace
}  // namespace ckptfs::fs::cli

int main(int argc, char** argv) {
  ckptfs::io::allow_no_secret_in_core_files();
  return ckptfs::fs::cli::run(argc, argv);
}
