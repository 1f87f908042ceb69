// ckptfs verify: reads steps and compares them with their digests.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "fs/cli/path_command.h"
#include "fs/cli/progress.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct Verified {
  std::map<std::string, json> files;  // by path
  uint64_t bytes = 0;
  uint64_t left_out = 0;  // files and folders

  uint64_t count(const std::string& state) const {
    uint64_t count = 0;
    for (const auto& [path, file] : files) count += file.value("state", "") == state ? 1 : 0;
    return count;
  }
};

// A file that took several requests is in several answers. If one part is damaged, the file is.
void merge(Verified& outcome, const json& answer) {
  for (const json& file : answer.value("files", json::array())) {
    const auto [known, fresh] = outcome.files.try_emplace(file.value("path", ""), file);
    if (fresh) continue;
    if (known->second.value("state", "") != "damaged") known->second["state"] = file.value("state", "");
    for (const json& range : file.value("damaged", json::array())) known->second["damaged"].push_back(range);
  }
  outcome.bytes += answer.value("bytes", uint64_t{0});
}

Result<Verified> verify(const Target& target) {
  Verified outcome;
  Progress progress("verifying");
  uint64_t total = 0;
  for (json request = {{"path", target.path}}; true;) {
    TRY_ASSIGN(const json answer, ask_daemon(target.mount, "verify", request));
    merge(outcome, answer);
    total = answer.value("total", total);
    outcome.left_out = answer.value("left_out", uint64_t{0});
    progress.show(outcome.bytes, total);
    if (!answer.contains("next")) return outcome;
    request["from"] = answer["next"];
  }
}

void print_damage(const std::string& path, const json& file) {
  for (const json& range : file.value("damaged", json::array())) {
    std::printf("DAMAGED %s: %s from byte %llu on\n", printable(path).c_str(),
                human_size(range.value("length", uint64_t{0})).c_str(),
                static_cast<unsigned long long>(range.value("offset", uint64_t{0})));
  }
}

void print(const Verified& outcome) {
  for (const auto& [path, file] : outcome.files) {
    if (file.value("state", "") == "damaged") print_damage(path, file);
  }
  std::printf("%s read: %s ok", human_size(outcome.bytes).c_str(), counted(outcome.count("ok"), "file").c_str());
  const auto part = [&](const char* state, const char* words) {
    if (const uint64_t count = outcome.count(state); count != 0)
      std::printf(", %llu %s", static_cast<unsigned long long>(count), words);
  };
  part("damaged", "DAMAGED");
  part("changed", "changed since");
  part("unhashed", "not yet hashed");
  std::printf("\n");
  if (outcome.left_out != 0) {
    std::printf("Left out: %s that you may not read, or that lie too deep; ask their owners or root.\n",
                counted(outcome.left_out, "file and folder", "files and folders").c_str());
  }
  if (outcome.count("damaged") != 0) {
    std::printf("Damaged files no longer hold what was written: restore them from a copy, or remove the step.\n");
  }
}

Result<int> run_accept(const Target& target, bool as_json) {
  TRY_ASSIGN(const json answer, ask_daemon(target.mount, "accept", {{"path", target.path}}));
  return print_answer(as_json, answer, [&] {
    const json accepted = answer.value("accepted", json::array());
    for (const json& path : accepted) {
      std::printf("%s: what the disk holds is its content from now on\n", printable(path.get<std::string>()).c_str());
    }
    if (accepted.empty()) std::printf("No file there is suspect.\n");
  });
}

Result<int> run_verify(const Target& target, bool as_json) {
  TRY_ASSIGN(const Verified outcome, verify(target));
  json files = json::array();
  for (const auto& [name, file] : outcome.files) files.push_back(file);
  const json answer = {{"files", std::move(files)}, {"bytes", outcome.bytes}, {"left_out", outcome.left_out}};
  print_answer(as_json, answer, [&] { print(outcome); });
  return outcome.count("damaged") == 0 ? kSuccess : kDamaged;
}

}  // namespace

void add_verify(CLI::App& app, Chosen& chosen) {
  add_path_command(
      app, chosen,
      {"verify", "Read steps back and compare them with their digests", "PATH",
       "A mount, a series, a step or a file (default: all steps of the only mount)",
       "The daemon takes digests in the background, some time after a file was written. Exits with 3 if "
       "a file is damaged.\n"
       "Example:\n  ckptfs verify\n  ckptfs verify /ckpt/steps/global_step100",
       run_verify,
       PathCommand::Flag{"--accept", "Accept what the disk holds of suspect files, whose write-back failed",
                         run_accept}});
}

}  // namespace ckptfs::fs::cli
