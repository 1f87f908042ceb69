#include "meta/formats/manifest.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

using nlohmann::json;

constexpr std::string_view kManifestPrefix = "ckptfs.";
constexpr std::string_view kManifestSuffix = ".json";
constexpr int kManifestFormat = 1;

// Why a file that a manifest names is not what it says; empty: it is.
std::string wrong_with(const StepFiles::File& named, const std::map<std::string_view, uint64_t>& sizes) {
  const auto found = sizes.find(named.path);
  if (found == sizes.end()) return named.path + ": it is not there";
  if (found->second == named.size) return {};
  return named.path + ": it has " + std::to_string(found->second) + " bytes, and should have " +
         std::to_string(named.size);
}

}  // namespace

std::string manifest_name(unsigned rank) {
  return std::string(kManifestPrefix) + checkpoint_rank_name(rank) + std::string(kManifestSuffix);
}

std::optional<unsigned> rank_of_manifest(std::string_view name) {
  if (!name.starts_with(kManifestPrefix) || !name.ends_with(kManifestSuffix)) return std::nullopt;
  name.remove_prefix(kManifestPrefix.size());
  if (name.size() < kManifestSuffix.size()) return std::nullopt;
  name.remove_suffix(kManifestSuffix.size());
  return rank_of(name);
}

std::string manifest_text(const RankManifest& manifest) {
  json files = json::array();
  for (const StepFiles::File& file : manifest.files) files.push_back({{"name", file.path}, {"size", file.size}});
  const json whole = {{"format", kManifestFormat},
                      {"attempt", manifest.attempt},
                      {"rank", manifest.rank},
                      {"world_size", manifest.world_size},
                      {"files", std::move(files)}};
  return whole.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<RankManifest> parse_manifest(const std::string& text) {
  try {
    const json whole = json::parse(text);
    if (whole.at("format").get<int>() != kManifestFormat) {
      return Error(EBADMSG, "a manifest of format " + whole.at("format").dump() + ", which this ckptfs does not know");
    }
    RankManifest manifest{whole.at("attempt"), whole.at("rank"), whole.at("world_size"), {}};
    for (const json& file : whole.at("files")) manifest.files.push_back({file.at("name"), file.at("size")});
    if (manifest.world_size == 0 || manifest.world_size > kLargestWorld || manifest.rank >= manifest.world_size) {
      return Error(EBADMSG, "rank " + std::to_string(manifest.rank) + " of " + std::to_string(manifest.world_size) +
                                " there cannot be");
    }
    return manifest;
  } catch (const json::exception& e) {
    return Error(EBADMSG, std::string("no manifest: ") + e.what());
  }
}

Attendance check_manifests(const StepFiles& files, std::optional<unsigned> world_size) {
  std::map<std::string_view, uint64_t> sizes;
  for (const StepFiles::File& file : files.list()) sizes.emplace(file.path, file.size);
  std::map<unsigned, std::string> wrong;  // by rank that is there; empty: nothing is
  std::string attempt;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    const auto rank = rank_of_manifest(path);
    if (!rank) continue;
    const auto text = files.read(index, kMostManifest);
    const auto manifest = text ? parse_manifest(text.value()) : text.error();
    std::string& reason = wrong[*rank];
    if (!manifest) {
      reason = path + ": " + manifest.error().message();
      continue;
    }
    const unsigned ranks = manifest.value().world_size;
    if (attempt.empty()) attempt = manifest.value().attempt;
    if (!world_size) world_size = ranks;
    if (manifest.value().attempt != attempt || ranks != *world_size || manifest.value().rank != *rank) {
      reason = path + ": it is of another attempt to save this step, or of another rank";
    }
    for (const StepFiles::File& file : manifest.value().files) {
      if (reason.empty()) reason = wrong_with(file, sizes);
    }
  }
  Attendance attendance;
  if (!world_size) attendance.reason = "no manifest of a rank can be read";
  for (unsigned rank = 0; rank < world_size.value_or(0); ++rank) {
    const auto found = wrong.find(rank);
    if (found != wrong.end() && found->second.empty()) continue;
    attendance.missing.push_back(rank);
    if (!attendance.reason.empty()) continue;
    attendance.reason = found == wrong.end() ? manifest_name(rank) + " is not there" : found->second;
  }
  return attendance;
}

}  // namespace ckptfs::meta::formats
