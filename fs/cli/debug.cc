// ckptfs debug bundle: one text file for a bug report.
#include <fcntl.h>
#include <fmt/chrono.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/progress.h"
#include "fs/cli/system.h"
#include "io/fd.h"
#include "io/process.h"
#include "io/text.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

struct BundleArguments {
  std::string path;
  std::string file;
  bool as_json = false;
};

// The file of --log, as the daemon's own command line has it. Empty: it logs to syslog.
std::string log_of(const std::string& command_line) {
  Words words;
  std::istringstream rest(command_line);
  for (std::string word; std::getline(rest, word, '\0');) words.push_back(word);
  constexpr std::string_view kWithValue = "--log=";
  for (const std::string& word : words) {
    if (word.starts_with(kWithValue)) return word.substr(kWithValue.size());
  }
  const auto option = std::ranges::find(words, "--log");
  return option == words.end() || option + 1 == words.end() ? "" : *(option + 1);
}

class Bundle {
 public:
  explicit Bundle(std::ostream& out) : out_(out) {}

  // What cannot be had says why, in its place.
  void add(const std::string& title, const Result<std::string>& text) {
    out_ << "==== " << title << "\n" << (text ? text.value() : text.error().message()) << "\n\n";
  }
  void add_output(const Words& words) {
    const auto done = io::run_process(words);
    add(io::joined(words, " "), done ? Result<std::string>(done.value().out + done.value().err) : done.error());
  }
  void add_file(const std::string& path) { add(path, io::read_file(path)); }
  void add_own(const std::string& self, const Words& words) {
    Words all{self};
    all.insert(all.end(), words.begin(), words.end());
    add_output(all);
  }

 private:
  std::ostream& out_;
};

void add_machine(Bundle& bundle, const std::string& self) {
  bundle.add_own(self, {"--version"});
  bundle.add_output({"uname", "-a"});
  bundle.add_file("/etc/os-release");
  bundle.add_own(self, {"doctor", "--json"});
  bundle.add_file("/proc/self/mountinfo");
  bundle.add_output({"timeout", "10", "df", "-h"});  // a mount may hang
  bundle.add_file("/proc/meminfo");
}

void add_mount(Bundle& bundle, const std::string& self, const Target& target) {
  const std::string& point = target.mount.mountpoint;
  const auto status = ask_status(target.mount);
  bundle.add("status of " + point, status ? Result<std::string>(status.value().dump(2)) : status.error());
  if (!status) return;
  for (const char* const command : {"ls", "du"}) bundle.add_own(self, {command, "--json", point});
  bundle.add_own(self, {"remote", "status", "--json", point});
  const std::string process = "/proc/" + std::to_string(status.value().value("pid", 0));
  for (const char* const name : {"/status", "/limits", "/io"}) bundle.add_file(process + name);
  const auto words = io::read_file(process + "/cmdline");
  const std::string log = words ? log_of(words.value()) : "";
  if (log.empty()) {
    bundle.add_output({"journalctl", "-t", "ckptfs", "-n", "2000", "--no-pager"});
  } else {
    bundle.add_output({"tail", "-n", "2000", log});
  }
}

int run(const BundleArguments& arguments) {
  std::error_code failed;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return fail("/proc/self/exe", Error(failed.value(), failed.message()));
  // Made by us, for us alone: root may call it in a folder where others have put a link of that name.
  const auto file = io::open_at(AT_FDCWD, arguments.file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  if (!file) return fail(arguments.file, file.error());
  std::ostringstream out;
  {
    const Waiting waiting("asking the machine and the mount");
    Bundle bundle(out);
    add_machine(bundle, self);
    const auto target = find_target(arguments.path.empty() ? std::nullopt : std::optional(arguments.path));
    if (target) add_mount(bundle, self, target.value());
    if (!target) bundle.add("the mount", target.error());
  }
  const auto written = io::write_full(file.value().get(), std::as_bytes(std::span(out.view())), 0);
  if (!written) return fail(arguments.file, written.error());
  return print_answer(arguments.as_json, {{"file", arguments.file}}, [&] {
    std::printf("%s: read it before you send it: it has names of folders, users and hosts, but no content of files\n",
                arguments.file.c_str());
  });
}

std::string default_name() { return fmt::format("ckptfs-debug-{:%Y%m%d-%H%M%S}.txt", fmt::gmtime(std::time(nullptr))); }

}  // namespace

void add_debug(CLI::App& app, Chosen& chosen) {
  CLI::App* group = app.add_subcommand("debug", "Collect what a bug report needs");
  group->require_subcommand(1);
  group->footer("Example:\n  ckptfs debug bundle");
  auto arguments = std::make_shared<BundleArguments>();
  arguments->file = default_name();
  CLI::App* command = group->add_subcommand("bundle", "Write one text file with versions, status, doctor and log");
  command->add_option("PATH", arguments->path, "A mount (default: the only one)");
  command->add_option("-o", arguments->file, "The file (default: ckptfs-debug-TIME.txt here)");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "The file must not be there yet. It has no content of files, no keys and no tokens. It has names of folders, "
      "users and hosts: read it before "
      "you\n"
      "send it.\n"
      "Example:\n  ckptfs debug bundle\n  ckptfs debug bundle -o report.txt /ckpt");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli
