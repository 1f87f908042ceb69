// ckptfs remote add, remove and status: what a mount knows of the remotes of its series.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "fs/cli/client.h"
#include "fs/cli/format.h"
#include "fs/cli/path_command.h"
#include "fs/cli/remote_commands.h"
#include "fs/cli/remote_options.h"
#include "fs/cli/system.h"
#include "fs/remote/remote_settings.h"
#include "io/image_file.h"
#include "io/text.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct AddArguments {
  std::string url;
  std::string series;
  std::string slot = "0/1";
  std::string limit;
  bool take_over = false;
  io::S3Settings s3;
  bool as_json = false;
};

Result<std::pair<uint32_t, uint32_t>> parse_slot(const std::string& text) {
  const Error wrong(EINVAL, "--slot: '" + text + "' is none; a slot is I/N: 0/2 and 1/2 for two nodes");
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return wrong;
  const auto slot = io::parse_number<uint32_t>(text.substr(0, slash));
  const auto slots = io::parse_number<uint32_t>(text.substr(slash + 1));
  if (!slot || !slots || *slot >= *slots) return wrong;
  return std::pair(*slot, *slots);
}

// The daemon looks for the file from a folder of its own.
Result<std::string> absolute(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  std::string folder(4096, '\0');
  if (::getcwd(folder.data(), folder.size()) == nullptr) return last_error(path);
  return folder.substr(0, folder.find('\0')) + "/" + path;
}

Result<json> ask_to_add(const AddArguments& arguments) {
  TRY(refuse_secrets(arguments.url, "the address of the remote"));
  TRY(refuse_secrets(arguments.s3.endpoint, "--endpoint"));
  TRY_ASSIGN(const auto slot, parse_slot(arguments.slot));
  RemoteSettings settings{arguments.url, slot.first, slot.second, 0, "", arguments.s3};
  if (!arguments.limit.empty()) {
    TRY_ASSIGN(settings.upload_limit, io::parse_size(arguments.limit));
  }
  TRY_ASSIGN(settings.s3.authorities, absolute(arguments.s3.authorities));
  TRY_ASSIGN(const Target target, find_target(arguments.series));
  json request = to_json(settings);
  request["series"] = target.path;
  request["take_over"] = arguments.take_over;
  return ask_and_wait(target.mount, "trying the remote", "remote_add", request);
}

int run_add(const AddArguments& arguments) {
  const auto added = ask_to_add(arguments);
  if (!added) return fail_remote(arguments.url, added.error());
  return print_answer(arguments.as_json, added.value(), [&] {
    std::printf("%s is pushed to %s, as slot %u of %u: each step once it has been quiet for a while.\n",
                printable(added.value().value("series", "")).c_str(), printable(arguments.url).c_str(),
                added.value().value("slot", 0U), added.value().value("slots", 1U));
  });
}

// --- status

std::string words_of(const json& step) {
  const std::string error = step.value("error", ""), waits = step.value("waits_for", "");
  return error.empty() ? waits : error;
}

// "sent 12.0 GiB, 90.1 GiB were there; 1.1 GiB/s now"
std::string moved(const json& remote) {
  std::string text = human_size(remote.value("sent", uint64_t{0})) + " sent, " +
                     human_size(remote.value("copied", uint64_t{0})) + " were there already";
  if (const uint64_t rate = remote.value("bytes_per_second", uint64_t{0}); rate > 0) {
    text += "; " + human_size(rate) + "/s now";
  }
  return text;
}

// What slot 0 does there daily.
void print_collector(const json& collector) {
  if (!collector.is_object()) return;
  if (const std::string trouble = collector.value("trouble", ""); !trouble.empty()) {
    std::printf("  the collector fails for %s, so no rule is carried out there: %s\n",
                human_age(collector.value("failing_seconds", int64_t{0})).c_str(), printable(trouble).c_str());
  }
  if (collector.at("last").is_number()) {
    std::printf("  the collector ran %s ago: since the mount %s removed, %s deleted, %s wait\n",
                human_age(std::time(nullptr) - collector.at("last").get<int64_t>()).c_str(),
                counted(collector.value("removed", uint64_t{0}), "step").c_str(),
                human_size(collector.value("deleted_bytes", uint64_t{0})).c_str(),
                human_size(collector.value("waiting_bytes", uint64_t{0})).c_str());
  }
  for (const json& warning : collector.value("warnings", json::array())) {
    std::printf("  warning: %s\n", printable(warning.get<std::string>()).c_str());
  }
}

void print_remote(const json& remote) {
  std::printf("%s -> %s, slot %u of %u%s\n", printable(remote.value("series", "")).c_str(),
              printable(remote.value("url", "")).c_str(), remote.value("slot", 0U), remote.value("slots", 1U),
              remote.value("push", "") == "manual" ? ", by hand only (rule push)" : "");
  std::printf("  %s\n", moved(remote).c_str());
  if (const std::string trouble = remote.value("trouble", ""); !trouble.empty()) {
    std::printf("  stalled for %s: %s\n", human_age(remote.value("stalled_seconds", int64_t{0})).c_str(),
                printable(trouble).c_str());
  }
  print_collector(remote.value("collector", json()));
  Table table({{"TAG"}, {"REMOTE"}, {"SIZE", Table::Align::right}, {"WHAT STANDS IN THE WAY"}});
  std::string notes;
  for (const json& step : remote.value("steps", json::array())) {
    const bool done = step.value("stage", "") == "committed", bad = !step.value("error", "").empty();
    table.add({{step.value("tag", "")},
               {step.value("state", ""), done  ? Colour::green
                                         : bad ? Colour::red
                                               : Colour::yellow},
               {human_size(step.value("bytes", uint64_t{0}))},
               {done ? "" : words_of(step)}});
    for (const json& note : step.value("notes", json::array())) {
      notes += printable("  " + step.value("tag", "") + ": " + note.get<std::string>()) + "\n";
    }
  }
  std::printf("%s%s", table.text(stdout_is_terminal()).c_str(), notes.c_str());
}

Result<int> run_remote_status(const Target& target, bool as_json) {
  TRY_ASSIGN(const json result, ask_daemon(target.mount, "remote_status", {{"path", target.path}}));
  return print_answer(as_json, result, [&] {
    const json remotes = result.value("remotes", json::array());
    for (const json& remote : remotes) print_remote(remote);
    if (remotes.empty()) std::printf("No series has a remote. `ckptfs remote add URL SERIES` gives one.\n");
  });
}

Result<int> run_remove(const Target& target, bool as_json) {
  TRY_ASSIGN(const json result,
             ask_and_wait(target.mount, "ending the pushes", "remote_remove", {{"series", target.path}}));
  return print_answer(as_json, result, [&] {
    std::printf("%s has no remote any more. What is there stays there.\n",
                printable(result.value("series", "")).c_str());
  });
}

}  // namespace

void add_remote_add(CLI::App& group, Chosen& chosen) {
  auto arguments = std::make_shared<AddArguments>();
  CLI::App* command = group.add_subcommand("add", "Push the steps of a series to a remote from now on");
  command->add_option("URL", arguments->url, "s3://BUCKET/PREFIX, or file:///FOLDER on a shared file system")
      ->required();
  command->add_option("SERIES", arguments->series, "A series of a mount")->required();
  command->add_option("--slot", arguments->slot, "I/N: this is mount I of N that hold a step together")
      ->capture_default_str();
  command->add_option("--limit-upload", arguments->limit, "At most so many bytes a second, as in 100M");
  command->add_flag("--take-over", arguments->take_over, "Take the slot from another mount, which is gone for good");
  add_s3_options(*command, arguments->s3);
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "The remote is tried first. The daemon finds the credentials as the AWS tools do, in its own environment.\n"
      "Run it again with the same URL to change options.\n"
      "Example:\n  ckptfs remote add s3://bucket/run7 /ckpt/steps --slot 0/2\n"
      "  ckptfs remote add file:///lustre/run7 /ckpt/steps --limit-upload 100M\n"
      "  ckptfs remote add file:///lustre/run7 /ckpt/steps --take-over  # on a new disk, or a new node");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run_add(*arguments); }; });
}

void add_remote_remove(CLI::App& group, Chosen& chosen) {
  add_path_command(group, chosen,
                   {"remove", "Push to the remote of a series no more", "SERIES", "A series of a mount",
                    "What is there stays there.\nExample:\n  ckptfs remote remove /ckpt/steps", run_remove});
}

void add_remote_status(CLI::App& group, Chosen& chosen) {
  add_path_command(group, chosen,
                   {"status", "What of a mount is in its remotes, what is on its way, and what stands in the way",
                    "PATH", "A mount, a series or a step (default: the only mount)",
                    "Example:\n  ckptfs remote status /ckpt/steps\n  ckptfs remote status --json", run_remote_status});
}

}  // namespace ckptfs::fs::cli
