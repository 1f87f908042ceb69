// ckptfs remote export and verify: steps are read back from a remote, without a mount.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "fs/cli/format.h"
#include "fs/cli/progress.h"
#include "fs/cli/remote_commands.h"
#include "fs/cli/remote_options.h"
#include "fs/cli/remote_reading.h"
#include "fs/cli/system.h"
#include "io/host.h"
#include "io/text.h"
#include "meta/remote/commit.h"
#include "meta/remote/remote_step.h"

namespace ckptfs::fs::cli {
namespace {

using meta::remote::CommittedStep;
using meta::remote::RemoteStep;
using meta::remote::StepAddress;
using meta::remote::VerifyReport;
using nlohmann::json;

// --- export

struct ExportArguments {
  RemoteOptions options;
  std::string folder;
  std::optional<uint32_t> slot;
};

// The folder as an absolute path. EEXIST: it is there.
Result<std::string> new_folder(const std::string& folder) {
  struct stat found {};
  if (::lstat(folder.c_str(), &found) == 0) {
    return Error(EEXIST, folder + " is there already: name a folder that is not; it becomes the step");
  }
  TRY_ASSIGN(const std::string path, absolute_path(folder));
  const std::string above = std::filesystem::path(path).parent_path();
  if (::stat(above.c_str(), &found) != 0) return last_error(above);
  if (!S_ISDIR(found.st_mode)) return Error(ENOTDIR, above + " is no folder");
  return path;
}

Result<int> run_export(const ExportArguments& arguments) {
  TRY_ASSIGN(const StepAddress address, meta::remote::split_step(arguments.options.url));
  TRY_ASSIGN(const std::string folder, new_folder(arguments.folder));
  TRY_ASSIGN(const Remote remote, open_remote(address.url, arguments.options));
  end_in_order();
  Progress line("exporting");
  TRY_ASSIGN(const CommittedStep found, find_standing(remote, address.step));
  const std::string above = std::filesystem::path(folder).parent_path();
  TRY_ASSIGN(const RemoteStep step, RemoteStep::open(*remote.store, found, above, limits_of(remote)));
  const std::optional<uint32_t> slot = arguments.slot ? arguments.slot : address.slot;
  if (slot && *slot >= step.slots()) {
    return Error(EINVAL, "slot " + std::to_string(*slot) + ": the step has " + counted(step.slots(), "slot") +
                             ", counted from 0");
  }
  TRY(meta::remote::export_step(step, slot, folder, settings_of(remote, line)));
  const json answer = {{"step", found.name()}, {"folder", folder}, {"requests", cost_of(remote.store->counts())}};
  return print_answer(arguments.options.as_json, answer, [&] {
    std::printf("%s: step %s, compared with its digests\n", printable(folder).c_str(), printable(found.name()).c_str());
    print_cost(remote.store->counts());
  });
}

// --- verify

struct VerifyArguments {
  RemoteOptions options;
  std::string sample = "100%";
};

// "5%" -> 0.05
Result<double> parse_share(const std::string& text) {
  const auto percent = io::parse_number<double>(text.substr(0, text.size() - (text.ends_with('%') ? 1 : 0)));
  if (!percent || !(*percent > 0 && *percent <= 100)) {
    return Error(EINVAL, "--sample " + text + ": it takes a share above 0% and up to 100%, as in 5%");
  }
  return *percent / 100;
}

struct ToVerify {
  Remote remote;
  std::vector<CommittedStep> steps;
};

Result<ToVerify> all_steps(const RemoteOptions& options) {
  TRY_ASSIGN(Remote remote, open_remote(options.url, options));
  TRY_ASSIGN(auto steps, standing_steps(remote));
  if (steps.empty()) return Error(ENOENT, remote.store->url() + ": no step is committed there");
  return ToVerify{std::move(remote), std::move(steps)};
}

Result<ToVerify> one_step(const RemoteOptions& options) {
  TRY_ASSIGN(const StepAddress address, meta::remote::split_step(options.url));
  TRY_ASSIGN(Remote remote, open_remote(address.url, options));
  TRY_ASSIGN(CommittedStep step, find_standing(remote, address.step));
  return ToVerify{std::move(remote), {std::move(step)}};
}

// URL or URL/TAG: it is a step if what stands before the last name has such a step. The credentials may be for the
// remote alone, so what goes wrong there says nothing.
Result<ToVerify> what_to_verify(const RemoteOptions& options) {
  const Waiting waiting("looking for the steps");
  auto one = one_step(options);
  if (one || one.error().errno_value() == ECANCELED) return one;
  auto all = all_steps(options);
  if (all || all.error().errno_value() != ENOENT || one.error().errno_value() != ENOENT) return all;
  return Error(ENOENT, options.url + ": neither a remote that has steps, nor a step of one");
}

struct VerifiedStep {
  std::string name;
  VerifyReport report;
};

Result<VerifyReport> verify_one(const Remote& remote, const CommittedStep& step, double share, Progress& line) {
  TRY_ASSIGN(const RemoteStep opened, RemoteStep::open(*remote.store, step, io::temporary_folder(), limits_of(remote)));
  return meta::remote::verify_step(opened, share, settings_of(remote, line));
}

// A step that cannot be opened is wrong. But a store that is out of reach says nothing of its steps.
Result<std::vector<VerifiedStep>> verify_all(const ToVerify& work, double share) {
  std::vector<VerifiedStep> verified;
  for (const CommittedStep& step : work.steps) {
    Progress line("verifying");
    auto report = verify_one(work.remote, step, share, line);
    if (!report) {
      const int why = report.error().errno_value();
      if (why != EBADMSG && why != EPROTO && why != ENOENT && why != EEXIST) return report.error();
      report = VerifyReport{0, 0, {report.error().message()}};
    }
    verified.push_back({step.name(), std::move(report.value())});
  }
  return verified;
}

json json_of(const std::vector<VerifiedStep>& verified, const Remote& remote) {
  json steps = json::array();
  for (const VerifiedStep& step : verified) {
    steps.push_back({{"step", step.name},
                     {"chunks", step.report.chunks},
                     {"bytes", step.report.bytes},
                     {"wrong", step.report.wrong}});
  }
  return {{"url", remote.store->url()}, {"steps", std::move(steps)}, {"requests", cost_of(remote.store->counts())}};
}

void print_verified(const std::vector<VerifiedStep>& verified) {
  for (const VerifiedStep& step : verified) {
    for (const std::string& wrong : step.report.wrong) {
      std::printf("DAMAGED %s: %s\n", printable(step.name).c_str(), printable(wrong).c_str());
    }
    std::printf("%s: %s read and compared, %s: %s\n", printable(step.name).c_str(),
                counted(step.report.chunks, "chunk").c_str(), human_size(step.report.bytes).c_str(),
                step.report.wrong.empty() ? "all ok" : "DAMAGED");
  }
}

Result<int> run_remote_verify(const VerifyArguments& arguments) {
  TRY_ASSIGN(const double share, parse_share(arguments.sample));
  end_in_order();
  TRY_ASSIGN(const ToVerify work, what_to_verify(arguments.options));
  TRY_ASSIGN(const auto verified, verify_all(work, share));
  print_answer(arguments.options.as_json, json_of(verified, work.remote), [&] {
    print_verified(verified);
    print_cost(work.remote.store->counts());
  });
  for (const VerifiedStep& step : verified) {
    if (!step.report.wrong.empty()) return kDamaged;
  }
  return kSuccess;
}

}  // namespace

void add_remote_export(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = group.add_subcommand("export", "Copy a step out of a remote into a folder");
  add_remote_options(*command, arguments->options, "URL/TAG", "The remote's address and the step's name");
  command->add_option("FOLDER", arguments->folder, "A folder that is not there yet; it becomes the step")->required();
  command->add_option("--slot", arguments->slot, "Only what this slot has pushed (default: what all have)");
  command->footer(
      "Each chunk is compared with its digest. FOLDER appears when all of it is there and durable, or not at all.\n"
      "Example:\n  ckptfs remote export file:///lustre/run7/global_step100 /backup/global_step100");
  choose(*command, chosen, arguments, run_export);
}

void add_remote_verify(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command =
      group.add_subcommand("verify", "Read steps back from a remote and compare them with their digests");
  add_remote_options(*command, arguments->options, "URL[/TAG]", "A remote, or one step of it");
  command->add_option("--sample", arguments->sample, "Read this share of the chunks, chosen at random: 5%")
      ->capture_default_str();
  command->footer(
      "It reads as many bytes as it verifies, and says what it took.\n"
      "Exits with 3 if anything is damaged or missing.\n"
      "Example:\n  ckptfs remote verify file:///lustre/run7/global_step100\n"
      "  ckptfs remote verify --sample 5% file:///lustre/run7");
  choose(*command, chosen, arguments, run_remote_verify);
}

}  // namespace ckptfs::fs::cli
