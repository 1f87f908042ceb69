#include "meta/care/neighbours.h"

#include <algorithm>
#include <array>

#include "meta/care/digests.h"
#include "meta/formats/file_kinds.h"
#include "meta/names.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kLongestWay = 64;

Result<std::string> name_in(const Tree& tree, InodeNumber folder, InodeNumber child) {
  TRY_ASSIGN(const auto entries, tree.list(folder));
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) { return entry.inode == child; });
  if (found == entries.end()) return Error(ENOENT);
  return found->name;
}

// None: the file's digests are not valid.
Result<std::optional<io::Digest>> root_of(const Store& store, const InodeRecord& file) {
  TRY_ASSIGN(const BlobRecord blob, store.index().blob(file.blob));
  return are_current(file, blob.digest) ? std::optional(blob.digest.root) : std::nullopt;
}

bool holds_tensors(const std::string& name) {
  const formats::FileKind kind = formats::kind_of(name);
  return kind.holds_weights() || kind.role == formats::FileRole::optimizer;
}

bool is_directory(const DirectoryEntry& entry, bool numbered) {
  return entry.type == S_IFDIR && step_number(entry.name).has_value() == numbered;
}

struct TensorFile {
  std::vector<std::string> path;
  InodeNumber inode = 0;
};

Result<std::vector<TensorFile>> tensor_files(const Tree& tree, InodeNumber step) {
  std::vector<TensorFile> offloaded;
  std::vector<TensorFile> others;
  TRY(for_each_file(tree, step, [&](const std::vector<std::string>& where, InodeNumber file) -> Result<> {
    const bool swapped = where.front() == kTensorsName || where.front() == kParamsName;
    if (swapped) offloaded.push_back({where, file});
    if (!swapped && holds_tensors(where.back())) others.push_back({where, file});
    return success();
  }));
  return offloaded.empty() ? others : offloaded;
}

}  // namespace

// Names are found last: to find one reads the whole folder, and most files lie in no step.
Result<std::optional<Place>> place_of(const Tree& tree, InodeNumber inode) {
  Place place;
  std::vector<InodeNumber> way{inode};
  while (place.series == 0) {
    TRY_ASSIGN(const InodeRecord record, tree.inode(way.back()));
    if (record.parent == 0 || way.size() > kLongestWay) return std::optional<Place>();
    TRY_ASSIGN(const InodeRecord parent, tree.inode(record.parent));
    if ((parent.flags & kSeries) == 0) {
      way.push_back(record.parent);
      continue;
    }
    if (!record.is_dir()) return std::optional<Place>();
    place.series = record.parent;
  }
  place.step = way.back();
  for (size_t depth = way.size() - 1; depth > 0; --depth) {
    TRY_ASSIGN(std::string name, name_in(tree, way[depth], way[depth - 1]));
    place.path.push_back(std::move(name));
  }
  return std::optional(std::move(place));
}

std::optional<InodeNumber> file_at(const Tree& tree, InodeNumber step, const std::vector<std::string>& path) {
  InodeNumber at = step;
  for (const std::string& name : path) {
    const auto child = tree.child(at, name);
    if (!child) return std::nullopt;
    at = child.value();
  }
  const auto record = tree.inode(at);
  if (!record || !record.value().is_regular()) return std::nullopt;
  return at;
}

std::optional<InodeNumber> last_made_before(const std::vector<DirectoryEntry>& entries, InodeNumber before,
                                            bool numbered) {
  std::optional<InodeNumber> last;
  for (const DirectoryEntry& entry : entries) {
    if (!is_directory(entry, numbered) || entry.inode >= before || entry.inode < last.value_or(0)) continue;
    last = entry.inode;
  }
  return last;
}

Result<NeighbourSteps> neighbours(const Tree& tree, InodeNumber series, InodeNumber step) {
  TRY_ASSIGN(const auto entries, tree.list(series));
  const auto own = std::ranges::find(entries, step, &DirectoryEntry::inode);
  if (own == entries.end()) return Error(ENOENT);
  const bool numbered = step_number(own->name).has_value();
  NeighbourSteps found{last_made_before(entries, step, numbered), std::nullopt};
  for (const DirectoryEntry& entry : entries) {
    if (!is_directory(entry, numbered) || entry.inode <= step) continue;
    if (entry.inode < found.after.value_or(UINT64_MAX)) found.after = entry.inode;
  }
  return found;
}

Result<std::unordered_map<InodeNumber, InodeNumber>> steps_before(const Tree& tree, InodeNumber series) {
  TRY_ASSIGN(auto entries, tree.list(series));
  std::ranges::sort(entries, {}, &DirectoryEntry::inode);
  std::unordered_map<InodeNumber, InodeNumber> before;
  std::array<InodeNumber, 2> last{};  // of directories without a number, and of directories with one
  for (const DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR) continue;
    InodeNumber& previous = last[step_number(entry.name).has_value() ? 1 : 0];
    if (previous != 0) before.emplace(entry.inode, previous);
    previous = entry.inode;
  }
  return before;
}

Result<Sameness> compare_files(const Store& store, InodeNumber a, InodeNumber b) {
  TRY_ASSIGN(const InodeRecord first, store.tree().inode(a));
  TRY_ASSIGN(const InodeRecord second, store.tree().inode(b));
  if (first.blob == second.blob) return Sameness::same;
  TRY_ASSIGN(const auto root, root_of(store, first));
  TRY_ASSIGN(const auto other, root_of(store, second));
  if (!root || !other) return Sameness::unknown;
  return *root == *other ? Sameness::same : Sameness::different;
}

Result<Sameness> compare_tensors(const Store& store, InodeNumber step, InodeNumber before) {
  TRY_ASSIGN(const auto files, tensor_files(store.tree(), step));
  Sameness all = files.empty() ? Sameness::different : Sameness::same;
  for (const TensorFile& file : files) {
    const auto other = file_at(store.tree(), before, file.path);
    if (!other) return Sameness::different;
    TRY_ASSIGN(const Sameness one, compare_files(store, file.inode, *other));
    if (one == Sameness::different) return one;
    if (one == Sameness::unknown) all = one;
  }
  return all;
}

Result<std::vector<IdenticalStep>> identical_steps(Store& store) {
  const Tree& tree = store.tree();
  TRY_ASSIGN(auto steps, list_steps(store));
  std::vector<IdenticalStep> identical;
  InodeNumber series = 0;
  std::unordered_map<InodeNumber, InodeNumber> all_before;  // in that series
  for (StepInfo& step : steps) {
    TRY_ASSIGN(const InodeRecord record, tree.inode(step.inode));
    if (record.parent != series) {
      series = record.parent;
      TRY_ASSIGN(all_before, steps_before(tree, series));
    }
    const auto found = all_before.find(step.inode);
    if (found == all_before.end()) continue;
    TRY_ASSIGN(const InodeRecord before, tree.inode(found->second));
    if (before.uid != record.uid) continue;
    TRY_ASSIGN(const Sameness sameness, compare_tensors(store, step.inode, found->second));
    if (sameness == Sameness::same) identical.push_back({std::move(step), found->second});
  }
  return identical;
}

}  // namespace ckptfs::meta
