// ckptfs doctor: says what ckptfs needs and this machine lacks.
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/utsname.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/doctor_checks.h"
#include "fs/cli/doctor_settings.h"
#include "fs/cli/format.h"
#include "fs/cli/system.h"
#include "io/fd.h"
#include "io/image.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

// Where a store stands already nothing has to be looked for. A mount whose daemon hangs would keep the doctor waiting.
std::vector<Check> check_place(const std::string& folder) {
  const auto mounts = io::mount_table();
  const auto mount = mounts ? io::mount_of(mounts.value(), folder) : std::nullopt;
  if (mount && io::is_ckptfs(*mount)) {
    const auto answers = check_answers(*mount);
    if (!answers)
      return {{"file system", Verdict::fail, answers.error().message(), "name a folder that is not on this mount"}};
    if (io::stat_at(AT_FDCWD, folder))
      return {{"file system", Verdict::ok, folder + ": on the mount " + mount->mountpoint, ""}};
  }
  if (io::has_image(folder))
    return {{"file system", Verdict::ok, folder + ": has the image of a store", ""}, check_loop(true)};
  return check_folder(folder);
}

std::vector<Check> examine(const std::string& folder) {
  utsname names{};
  uname(&names);
  std::vector<Check> checks{check_kernel(names.release), check_libfuse(fuse_pkgversion()),
                            check_fuse_device(),         check_privileges(),
                            check_page_limit(),          check_wake_ups()};
  for (auto found : {check_place(folder), check_mounts(), check_fstab("/etc/fstab"), check_services("/etc/ckptfs")}) {
    std::ranges::move(found, std::back_inserter(checks));
  }
  return checks;
}

const char* word(Verdict verdict) { return verdict == Verdict::ok ? "ok" : verdict == Verdict::warn ? "warn" : "FAIL"; }

void print_checks(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    const Colour colour = check.verdict == Verdict::ok     ? Colour::green
                          : check.verdict == Verdict::warn ? Colour::yellow
                                                           : Colour::red;
    const std::string padded = std::string(word(check.verdict)) + (check.verdict == Verdict::ok ? "  " : "");
    std::printf("%s  %-12s  %s\n", coloured(padded, stdout_is_terminal() ? colour : Colour::none).c_str(),
                check.name.c_str(), printable(check.found).c_str());
    if (!check.advice.empty()) std::printf("      %-12s  -> %s\n", "", printable(check.advice).c_str());
  }
}

json to_json(const std::vector<Check>& checks) {
  json rows = json::array();
  for (const Check& check : checks) {
    rows.push_back(
        {{"name", check.name}, {"verdict", word(check.verdict)}, {"found", check.found}, {"advice", check.advice}});
  }
  return {{"checks", rows}};
}

int run(const std::string& given, bool as_json) {
  const auto folder = absolute_path(given);
  if (!folder) return fail(given, folder.error());
  const auto checks = examine(folder.value());
  if (as_json) {
    print_json(to_json(checks));
  } else {
    print_checks(checks);
  }
  const bool failed =
      std::any_of(checks.begin(), checks.end(), [](const Check& check) { return check.verdict == Verdict::fail; });
  return failed ? kFailed : kSuccess;
}

}  // namespace

void add_doctor(CLI::App& app, Chosen& chosen) {
  struct Arguments {
    std::string folder = ".";
    bool as_json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("doctor", "Say what this machine has and lacks, and how to get it");
  command->add_option("FOLDER", arguments->folder, "Where a store would stand (default: here)");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "Looks at the kernel, at FOLDER, at the mounts that are there, and at /etc/fstab and /etc/ckptfs/*.conf. Exits\n"
      "with 1 if something that is needed is missing.\nExample:\n  ckptfs doctor /data");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return run(arguments->folder, arguments->as_json); }; });
}

}  // namespace ckptfs::fs::cli
