#include "fs/cli/timing.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <vector>

#include "fs/cli/format.h"
#include "fs/cli/system.h"
#include "io/fd.h"
#include "meta/formats/manifest.h"

namespace ckptfs::fs::cli {
namespace {

using meta::formats::RankManifest;
using nlohmann::json;

// In the order in which a save goes through them. Other stages follow, by name.
constexpr std::array<const char*, 5> kStages{"plan", "collective", "copy", "write", "sync"};

Result<RankManifest> manifest_at(const std::string& path) {
  TRY_ASSIGN(const struct stat st, io::stat_at(AT_FDCWD, path));
  if (static_cast<uint64_t>(st.st_size) > meta::formats::kMostManifest) {
    return Error(EFBIG, path + ": it is larger than any manifest");
  }
  TRY_ASSIGN(const std::string text, io::read_file(path));
  return with_name(path, meta::formats::parse_manifest(text));
}

Result<std::vector<RankManifest>> manifests_of(const std::string& step) {
  std::vector<RankManifest> manifests;
  std::error_code error;
  for (std::filesystem::directory_iterator at(step, error), end; !error && at != end; at.increment(error)) {
    if (!meta::formats::is_manifest_name(at->path().filename().string())) continue;
    TRY_ASSIGN(auto manifest, manifest_at(at->path().string()));
    manifests.push_back(std::move(manifest));
  }
  if (error) return Error(error.value(), step + ": " + error.message());
  std::ranges::sort(manifests, {}, &RankManifest::rank);
  return manifests;
}

std::vector<std::string> stages_of(const json& timing) {
  std::vector<std::string> stages(kStages.begin(), kStages.end());
  std::set<std::string> others;
  for (const json& rank : timing["ranks"]) {
    for (const auto& [name, seconds] : rank["stages"].items()) {
      if (std::ranges::find(stages, name) == stages.end()) others.insert(name);
    }
  }
  std::erase_if(stages, [&](const std::string& name) {
    const json& ranks = timing["ranks"];
    return std::none_of(ranks.begin(), ranks.end(), [&](const json& rank) { return rank["stages"].contains(name); });
  });
  stages.insert(stages.end(), others.begin(), others.end());
  return stages;
}

std::string capitals(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
  return text;
}

}  // namespace

Result<json> timing_of(const std::string& step) {
  TRY_ASSIGN(const auto manifests, manifests_of(step));
  json timing = {{"ranks", json::array()}, {"untimed", json::array()}};
  double last = 0;
  for (const RankManifest& manifest : manifests) {
    if (!manifest.timing) {
      timing["untimed"].push_back(manifest.rank);
      continue;
    }
    const auto& own = *manifest.timing;
    if (timing["ranks"].empty() || own.durable > last) {
      last = own.durable;
      timing["slowest"] = manifest.rank;
    }
    timing["ranks"].push_back({{"rank", manifest.rank},
                               {"host", own.host},
                               {"begun", own.begun},
                               {"durable", own.durable},
                               {"total", std::max(own.durable - own.begun, 0.0)},
                               {"stages", own.stages}});
  }
  if (timing["ranks"].empty()) {
    return Error(ENOENT, step + ": no rank left its times there; libckptfs leaves them in the steps that it saves");
  }
  for (json& rank : timing["ranks"]) rank["waited"] = last - rank["durable"].get<double>();
  return timing;
}

std::string timing_table(const json& timing) {
  using Align = Table::Align;
  const auto stages = stages_of(timing);
  std::vector<Table::Column> columns{{"RANK", Align::right}, {"HOST"}};
  for (const std::string& stage : stages) columns.push_back({capitals(stage), Align::right});
  columns.push_back({"TOTAL", Align::right});
  columns.push_back({"WAITED", Align::right});
  columns.push_back({""});
  Table table(columns);
  for (const json& rank : timing["ranks"]) {
    const bool slowest = rank["rank"] == timing["slowest"];
    const Colour colour = slowest ? Colour::yellow : Colour::none;
    std::vector<Cell> row{{rank["rank"].dump(), colour}, {printable(rank["host"].get<std::string>())}};
    for (const std::string& stage : stages) {
      const json& own = rank["stages"];
      row.push_back({own.contains(stage) ? human_duration(own[stage].get<double>()) : ""});
    }
    row.push_back({human_duration(rank["total"].get<double>())});
    row.push_back({human_duration(rank["waited"].get<double>())});
    row.push_back({slowest ? "slowest" : "", colour});
    table.add(std::move(row));
  }
  return table.text(stdout_is_terminal());
}

}  // namespace ckptfs::fs::cli
