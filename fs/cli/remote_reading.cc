#include "fs/cli/remote_reading.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "meta/remote/remote_facts.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

std::atomic<bool> is_interrupted{false};

void interrupt(int) { is_interrupted = true; }

}  // namespace

void end_in_order() {
  struct sigaction action {};
  action.sa_handler = interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
}

meta::remote::ReadSettings settings_of(const Remote& remote, Progress& line) {
  meta::remote::ReadSettings settings;
  settings.time = remote.time;
  settings.stop = &is_interrupted;
  settings.progress = [&line](const meta::remote::ReadProgress& progress) { line.show(progress.done, progress.bytes); };
  return settings;
}

io::RequestLimits limits_of(const Remote& remote) { return io::RequestLimits::within(remote.time, &is_interrupted); }

Result<std::vector<meta::remote::CommittedStep>> standing_steps(const Remote& remote) {
  TRY_ASSIGN(auto steps, meta::remote::list_steps(*remote.store, limits_of(remote)));
  std::erase_if(steps, [](const auto& step) { return step.gone; });
  if (steps.empty()) TRY(meta::remote::refuse_first_format(*remote.store, limits_of(remote)));
  return steps;
}

Result<meta::remote::CommittedStep> find_standing(const Remote& remote, const std::string& name) {
  TRY_ASSIGN(auto step, meta::remote::find_step(*remote.store, name, limits_of(remote)));
  if (step.gone) return Error(ENOENT, remote.store->url() + ": step " + name + " was removed there");
  return step;
}

json cost_of(io::RequestCounts& counts) {
  const auto value = [](const std::atomic<uint64_t>& count) { return count.load(std::memory_order_relaxed); };
  return {{"gets", value(counts.gets)},       {"lists", value(counts.lists)},
          {"puts", value(counts.puts)},       {"removes", value(counts.removes)},
          {"retries", value(counts.retries)}, {"bytes_received", value(counts.bytes_received)}};
}

void print_cost(io::RequestCounts& counts) {
  const json cost = cost_of(counts);
  const uint64_t puts = cost.value("puts", uint64_t{0}), removes = cost.value("removes", uint64_t{0});
  const std::string changes =
      puts + removes == 0 ? "" : ", " + counted(puts, "PUT") + ", " + counted(removes, "DELETE");
  std::printf("It took %s and %s%s, and %s came.\n", counted(cost.value("gets", uint64_t{0}), "GET").c_str(),
              counted(cost.value("lists", uint64_t{0}), "list").c_str(), changes.c_str(),
              human_size(cost.value("bytes_received", uint64_t{0})).c_str());
}

}  // namespace ckptfs::fs::cli
