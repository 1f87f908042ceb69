#include "meta/remote/union.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "io/printable.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/step_names.h"
#include "meta/names.h"

namespace ckptfs::meta::remote {
namespace {

constexpr uint64_t kComparedAtOnce = 16'384;  // chunks
constexpr size_t kMostNotes = 100;

std::string_view folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}
std::string_view name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }
bool is_swap_group(std::string_view name) { return name == kTensorsName || name == kParamsName; }

// What folders of ranks are called in the union, by what they are called in the part.
using Renamed = std::map<std::string, std::string, std::less<>>;

using RankFolder = std::pair<unsigned, std::string>;  // its rank on its machine, its path

// Ranks by the folder of their files, and folders of ranks by the folder of swap state that they are in.
struct RanksOfPart {
  std::map<std::string_view, std::set<unsigned>> files;
  std::map<std::string_view, std::set<RankFolder>> folders;
};

RanksOfPart ranks_of_part(const Part& part) {
  RanksOfPart found;
  for (const Entry& entry : part.entries()) {
    const std::string_view folder = folder_of(entry.path), name = name_of(entry.path);
    if (entry.kind == Entry::Kind::file) {
      const auto states = formats::parse_states_name(name);
      if (states && states->rank) found.files[folder].insert(*states->rank);
    } else if (entry.kind == Entry::Kind::folder && is_swap_group(name_of(folder))) {
      if (const auto rank = rank_of(name)) found.folders[folder].insert({*rank, entry.path});
    }
  }
  return found;
}

Result<Renamed> rename_ranks(const Part& part) {
  const RanksOfPart found = ranks_of_part(part);
  Renamed renamed;
  for (const auto& [group, folders] : found.folders) {
    const auto files = found.files.find(folder_of(group));
    const size_t ranks = files == found.files.end() ? 0 : files->second.size();
    if (ranks != folders.size()) {
      return Error(EEXIST, fmt::format("{}: slot {} has {} folders of ranks there, and {} ranks with a zero_pp_rank "
                                       "file: whose they are cannot be told",
                                       io::printable(group), part.header().push.slot, folders.size(), ranks));
    }
    auto rank = files->second.begin();
    for (const RankFolder& folder : folders) {
      renamed[folder.second] = fmt::format("{}/{}", group, checkpoint_rank_name(*rank++));
    }
  }
  return renamed;
}

std::string renamed_path(const std::string& path, const Renamed& renamed) {
  if (renamed.empty()) return path;
  for (size_t end = path.find('/'); end != std::string::npos;) {
    const size_t next = path.find('/', end + 1);
    const std::string_view outer = std::string_view(path).substr(0, end);
    if (is_swap_group(name_of(outer))) {
      const auto found = renamed.find(std::string_view(path).substr(0, next));
      if (found != renamed.end()) return found->second + (next == std::string::npos ? "" : path.substr(next));
    }
    end = next;
  }
  return path;
}

bool lowest_slot_counts(std::string_view path) {
  const std::string_view name = name_of(path);
  if (name.ends_with(".json") || name == "training_args.bin") return true;
  const auto states = formats::parse_states_name(name);
  return states && states->kind == formats::StatesName::Kind::model && !states->rank;
}

Result<bool> is_same_content(const Part& part, const Entry& one, const Part& other_part, const Entry& other) {
  if (one.size != other.size) return false;
  for (uint64_t at = 0; at < one.chunks(); at += kComparedAtOnce) {
    const uint64_t count = std::min(kComparedAtOnce, one.chunks() - at);
    TRY_ASSIGN(const auto ours, part.chunks(one, at, count));
    TRY_ASSIGN(const auto theirs, other_part.chunks(other, at, count));
    if (!std::ranges::equal(ours, theirs, {}, &Chunk::digest, &Chunk::digest)) return false;
  }
  return true;
}

// What one name means in the slots that have it.
class Merge {
 public:
  explicit Merge(const std::vector<const Part*>& parts) : parts_(parts) {}

  // `entries`: of one path, by slot.
  Result<> take(std::span<UnionEntry> entries) {
    for (const UnionEntry& other : entries.subspan(1)) {
      TRY_ASSIGN(const bool noted, compare(entries.front(), other));
      if (noted) break;
    }
    whole_.entries.push_back(std::move(entries.front()));
    return success();
  }
  Union finish() { return std::move(whole_); }

 private:
  const Entry& of(const UnionEntry& one) const { return parts_[one.slot]->entries()[one.index]; }

  // True: they differ, and a note says so.
  Result<bool> compare(const UnionEntry& lowest, const UnionEntry& other) {
    const Entry &ours = of(lowest), &theirs = of(other);
    const auto differs = [&](std::string_view how) {
      return Error(
          EEXIST, fmt::format("{}: slots {} and {} hold {}", io::printable(lowest.path), lowest.slot, other.slot, how));
    };
    if (ours.kind != theirs.kind) return differs("different kinds of this name");
    if (ours.kind == Entry::Kind::folder) return false;
    if (ours.target != theirs.target) return differs("links to different places");
    TRY_ASSIGN(const bool same, is_same_content(*parts_[lowest.slot], ours, *parts_[other.slot], theirs));
    if (same) return false;
    if (!lowest_slot_counts(lowest.path)) return differs("different files of this name");
    note(fmt::format("{}: slots {} and {} hold different files of this name; that of slot {} counts",
                     io::printable(lowest.path), lowest.slot, other.slot, lowest.slot));
    return true;
  }

  void note(std::string words) {
    if (whole_.notes.size() < kMostNotes)
      whole_.notes.push_back(std::move(words));
    else if (whole_.notes.size() == kMostNotes)
      whole_.notes.emplace_back("and other files");
  }

  const std::vector<const Part*>& parts_;
  Union whole_;
};

// The entries of all parts, under their names in the union, by path and slot.
Result<std::vector<UnionEntry>> all_entries(const std::vector<const Part*>& parts) {
  std::vector<UnionEntry> all;
  for (uint32_t slot = 0; slot < parts.size(); ++slot) {
    Renamed renamed;
    if (parts.size() > 1) {
      TRY_ASSIGN(renamed, rename_ranks(*parts[slot]));
    }
    const std::vector<Entry>& entries = parts[slot]->entries();
    for (size_t index = 0; index < entries.size(); ++index) {
      all.push_back({renamed_path(entries[index].path, renamed), slot, index});
    }
  }
  std::ranges::sort(all, {}, [](const UnionEntry& one) { return std::tie(one.path, one.slot, one.index); });
  return all;
}

}  // namespace

Result<Union> unite(const std::vector<const Part*>& parts) {
  TRY_ASSIGN(std::vector<UnionEntry> all, all_entries(parts));
  Merge merge(parts);
  for (size_t begin = 0; begin < all.size();) {
    size_t end = begin + 1;
    while (end < all.size() && all[end].path == all[begin].path) ++end;
    TRY(merge.take(std::span(all).subspan(begin, end - begin)));
    begin = end;
  }
  return merge.finish();
}

formats::CompletenessJudgement judge_union(const std::vector<const Part*>& parts, const Union& whole) {
  const Part* named = nullptr;  // the first that names its attempt
  std::vector<const formats::CompletenessFacts*> facts;
  for (const Part* const part : parts) {
    const PartHeader& header = part->header();
    facts.push_back(&header.facts);
    if (header.save.attempt.empty()) continue;
    if (named == nullptr) named = part;
    if (header.save.attempt != named->header().save.attempt) {
      return {formats::Completeness::incomplete, fmt::format("slots {} and {} hold different attempts of this step",
                                                             named->header().push.slot, header.push.slot)};
    }
  }
  std::vector<formats::StepFiles::File> files;
  for (const UnionEntry& one : whole.entries) {
    const Entry& entry = parts[one.slot]->entries()[one.index];
    if (entry.kind == Entry::Kind::file) files.push_back({one.path, entry.size});
  }
  return formats::judge_together(facts, files);
}

}  // namespace ckptfs::meta::remote
