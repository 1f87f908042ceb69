// ckptfs remote du: what each step of a remote costs there.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "fs/cli/progress.h"
#include "fs/cli/remote_commands.h"
#include "fs/cli/remote_options.h"
#include "fs/cli/remote_reading.h"
#include "fs/cli/system.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/remote_usage.h"

namespace ckptfs::fs::cli {
namespace {

using meta::remote::RemoteUsage;
using meta::remote::StepUsage;
using nlohmann::json;

struct UsageArguments {
  RemoteOptions options;
};

json usage_json(const RemoteUsage& usage, const Remote& remote) {
  json steps = json::array();
  for (const StepUsage& one : usage.steps) {
    steps.push_back({{"step", one.step.name()}, {"objects", one.objects}, {"bytes", one.bytes}});
  }
  return {{"url", remote.store->url()},
          {"objects", usage.objects},
          {"bytes", usage.bytes},
          {"needed", usage.needed},
          {"needless", usage.needless},
          {"steps", std::move(steps)},
          {"requests", cost_of(remote.store->counts())}};
}

void print_usage(const RemoteUsage& usage, const Remote& remote) {
  using Align = Table::Align;
  Table table({{"STEP"}, {"OBJECTS", Align::right}, {"BYTES", Align::right}});
  for (const StepUsage& one : usage.steps) {
    table.add({{one.step.name()}, {std::to_string(one.objects)}, {human_size(one.bytes)}});
  }
  std::printf("%s: %s, %s\n%s", printable(remote.store->url()).c_str(), counted(usage.objects, "object").c_str(),
              human_size(usage.bytes).c_str(), table.text(stdout_is_terminal()).c_str());
  std::printf("Steps use %s. What is on its way, or waits to be deleted: %s.\n", human_size(usage.needed).c_str(),
              human_size(usage.needless).c_str());
  print_cost(remote.store->counts());
}

Result<int> run_remote_du(const UsageArguments& arguments) {
  TRY_ASSIGN(const Remote remote, open_remote(arguments.options.url, arguments.options));
  end_in_order();
  meta::remote::UsageSettings settings;
  settings.time = remote.time;
  settings.stop = limits_of(remote).stop;
  const auto usage = [&]() -> Result<RemoteUsage> {
    TRY(meta::remote::read_facts(*remote.store, limits_of(remote)));
    Progress line("looking");
    settings.progress = [&line](uint64_t objects) { line.show_count("looking", objects); };
    return meta::remote::measure_usage(*remote.store, settings);
  }();
  TRY(usage);
  return print_answer(arguments.options.as_json, usage_json(usage.value(), remote),
                      [&] { print_usage(usage.value(), remote); });
}

}  // namespace

void add_remote_du(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<UsageArguments>();
  CLI::App* command = group.add_subcommand("du", "What each step of a remote costs there");
  add_remote_options(*command, arguments->options, "URL", "s3://BUCKET/PREFIX or file:///FOLDER");
  command->footer(
      "A removal gives back all that the step takes. It asks for one list of all objects, and for each commit.\n"
      "Example:\n  ckptfs remote du file:///lustre/run7");
  choose(*command, chosen, arguments, run_remote_du);
}

}  // namespace ckptfs::fs::cli
