// What the names of a step's files demand of each other. Each class is told all paths, which must outlive it, and asked
// at the end. Used by step_names.cc.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "meta/formats/file_kinds.h"
#include "meta/formats/name_parts.h"
#include "meta/formats/rank_pickles.h"

namespace ckptfs::meta::formats {

inline bool is_dcp_description(FileRole role) {
  return role == FileRole::dcp_metadata || role == FileRole::dcp_rank_metadata;
}

// What must lie beside a file. Sources: accelerate/accelerator.py, checkpointing.py; olmo_core/train/checkpoint.py;
// verl's trainers.
class Demands {
 public:
  void note(std::string_view path) {
    constexpr std::string_view olmo = "model_and_optim/", olmos_rank = "model_and_optim/__";
    const bool olmos_own = path == ".metadata.json" || path.starts_with("train/");
    if (olmos_own || lies_at_top(path)) there_.insert(path);
    has_olmos_ = has_olmos_ || olmos_own;
    if (lies_at_top(path)) note_numbered(path);
    if (path.starts_with(olmo)) of_olmo_.insert(".metadata.json");
    if (path.starts_with(kVerlFolder) && parse_rank_pickle(path)) always_.emplace(kVerlFile);
    if (!path.starts_with(olmos_rank)) return;  // "model_and_optim/__1_0.distcp"
    const std::string_view rest = path.substr(olmos_rank.size());
    of_olmo_.insert("train/rank" + std::string(rest.substr(0, rest.find('_'))) + ".pt");
  }
  bool has_olmo() const { return !of_olmo_.empty(); }
  // `accelerate`: does its save_state() number the files?
  std::string first_missing(bool accelerate) const {
    const std::set<std::string> none;
    for (const auto* demanded : {&always_, accelerate ? &of_accelerate_ : &none, has_olmos_ ? &of_olmo_ : &none}) {
      for (const std::string& path : *demanded) {
        if (!there_.contains(path)) return path;
      }
    }
    return {};
  }

 private:
  // "optimizer_1.bin" is the second one: the first is "optimizer.bin". Of these the first has a number, too.
  void note_numbered(std::string_view name) {
    const size_t dot = name.find('.'), line = name.substr(0, dot).rfind('_');
    if (dot == name.npos || line == name.npos) return;
    const std::string_view stem = name.substr(0, line), ending = name.substr(dot);
    if (!are_digits(name.substr(line + 1, dot - line - 1))) return;
    if (stem == "random_states" || stem == "custom_checkpoint") {
      of_accelerate_.insert(std::string(stem) + "_0" + std::string(ending));
    } else if (stem == "optimizer" || stem == "scheduler" || stem == "model" || stem == "pytorch_model") {
      of_accelerate_.insert(std::string(stem) + std::string(ending));
    }
  }

  std::set<std::string_view> there_;
  std::set<std::string> always_, of_accelerate_, of_olmo_;
  bool has_olmos_ = false;
};

// "model-00001-of-00002.safetensors": the others belong to it, unless an index beside it tells which do.
class Shards {
 public:
  void note(const FileKind& kind, std::string_view path) {
    const size_t name_at = path.rfind('/') + 1, of = path.rfind("-of-");
    if (kind.role == FileRole::weights_index) indexed_.insert(path.substr(0, name_at));
    const bool weights = path.ends_with(".safetensors") || path.ends_with(".bin");
    if (!weights || of == path.npos || of < name_at + kDigits) return;
    const std::string_view number = path.substr(of - kDigits, kDigits);
    std::string_view rest = path.substr(of + 4);
    const auto count = take_number<uint32_t>(rest);
    if (!count || !are_digits(number)) return;
    Set& set = found_[{path.substr(0, of - kDigits), path.substr(of)}];
    set.count = *count;
    set.numbers.insert(number);
  }
  std::string first_missing(bool in_folders) const {
    for (const auto& [of, set] : found_) {
      if (!in_folders && !lies_at_top(of.first)) continue;
      if (indexed_.contains(of.first.substr(0, of.first.rfind('/') + 1))) continue;
      if (set.numbers.size() < set.count)
        return "not all of " + std::string(of.first) + "*" + std::string(of.second) + " are there";
    }
    return {};
  }

 private:
  static constexpr size_t kDigits = 5;
  struct Set {
    std::set<std::string_view> numbers;
    uint32_t count = 0;
  };

  std::map<std::pair<std::string_view, std::string_view>, Set> found_;  // by "model-", "-of-00002.safetensors"
  std::set<std::string_view> indexed_;
};

// Megatron's three files, by the folder.
class MegatronFolders {
 public:
  void note(std::string_view path) {
    constexpr std::array<std::string_view, 3> kFiles{".metadata", "common.pt", "metadata.json"};
    const size_t name_at = path.rfind('/') + 1;
    const auto* const file = std::ranges::find(kFiles, path.substr(name_at));
    if (file != kFiles.end()) found_[path.substr(0, name_at)].set(static_cast<size_t>(file - kFiles.begin()));
  }
  bool any() const {
    return std::ranges::any_of(found_, [](const auto& folder) { return folder.second.all(); });
  }

 private:
  std::map<std::string_view, std::bitset<3>> found_;
};

// Folders with files of DCP, and which of them have a .metadata.
struct DcpFolders {
  std::set<std::string_view> described, used;
  void note(const FileKind& kind, std::string_view path) {
    if (kind.folders > 1) return;
    const std::string_view folder = path.substr(0, path.rfind('/') + 1);
    if (is_dcp_description(kind.role)) described.insert(folder);
    if (kind.role == FileRole::dcp_data) used.insert(folder);
  }
  bool lack_metadata() const { return !std::ranges::includes(described, used); }
};

// The files of ranks that others demand: of each kind all ranks have one, and there are all three kinds.
class RankPickles {
 public:
  void note(std::string_view path) {
    const auto name = parse_rank_pickle(path);
    if (name) found_[name->folder][name->ranks][name->what].insert(name->rank);
  }
  std::string doubt() const {
    for (const auto& [folder, worlds] : found_) {
      if (worlds.size() > 1) return std::string(folder) + " has files of saves by other numbers of ranks";
      const auto& [ranks, kinds] = *worlds.begin();
      for (const std::string_view what : {"model", "optim", "extra_state"}) {
        const auto kind = kinds.find(what);
        if (kind == kinds.end() || kind->second.size() < ranks)
          return "not all " + std::to_string(ranks) + " ranks have a file " + std::string(folder) + std::string(what) +
                 "_world_size_" + std::to_string(ranks) + "_rank_*.pt here";
      }
    }
    return {};
  }

 private:
  std::map<std::string_view, std::map<uint32_t, std::map<std::string_view, std::set<uint32_t>>>> found_;
};

}  // namespace ckptfs::meta::formats
