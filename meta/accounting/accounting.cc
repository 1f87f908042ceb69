#include "meta/accounting/accounting.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

#include "io/extents.h"

namespace ckptfs::meta {
namespace {

constexpr Owner kNobody = 0;  // the owners that were asked for have numbers from 1

struct Named {
  InodeNumber inode = 0;
  Owner owner = kNobody;
  auto operator<=>(const Named&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
};

// Finds the owner of a folder: that of the nearest root at or above the folder.
class Folders {
 public:
  explicit Folders(const std::vector<AskedOwner>& owners) {
    for (size_t i = 0; i < owners.size(); ++i) {
      for (const InodeNumber root : owners[i].roots) known_.insert_or_assign(root, static_cast<Owner>(i + 1));
    }
    roots_ = known_;
  }

  void add(InodeNumber folder, InodeNumber parent) { parents_.emplace(folder, parent); }

  Owner owner_of_file(InodeNumber file, InodeNumber folder) {
    const auto root = roots_.find(file);
    return root != roots_.end() ? root->second : owner_of(folder);
  }

 private:
  Owner owner_of(InodeNumber folder) {
    std::vector<InodeNumber> path;
    Owner owner = kNobody;
    for (;;) {
      const auto [known, fresh] = known_.try_emplace(folder, kNobody);
      if (!fresh) {
        owner = known->second;
        break;
      }
      path.push_back(folder);
      const auto parent = parents_.find(folder);
      if (parent == parents_.end()) break;
      folder = parent->second;
    }
    for (const InodeNumber on_the_way : path) known_[on_the_way] = owner;
    return owner;
  }

  std::unordered_map<InodeNumber, Owner> roots_;
  std::unordered_map<InodeNumber, Owner> known_;  // roots, and folders asked for before
  std::unordered_map<InodeNumber, InodeNumber> parents_;
};

// The owners of all names of regular files, ascending by inode. An owner with several names of a file is there once.
Result<std::vector<Named>> read_names(const Index& index, const std::vector<AskedOwner>& owners) {
  Folders folders(owners);
  std::vector<std::pair<InodeNumber, InodeNumber>> files;  // inode, folder
  TRY(index.for_each_entry([&](InodeNumber parent, const DirectoryEntry& entry) -> Result<> {
    if (entry.type == S_IFDIR) folders.add(entry.inode, parent);
    if (entry.type == S_IFREG) files.emplace_back(entry.inode, parent);
    return success();
  }));
  std::vector<Named> names;
  names.reserve(files.size());
  for (const auto& [inode, folder] : files) names.push_back({inode, folders.owner_of_file(inode, folder)});
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// What a file's own extents tell, without those of other files.
class OwnExtents {
 public:
  explicit OwnExtents(size_t room) : room_(room) {}

  // ENOBUFS: there are more extents than there is room for.
  Result<> read(int blob) {
    return io::for_each_extent(blob, io::WriteBack::first, [this](const io::Extent& extent) -> Result<> {
      if (!extent.located || !extent.shared) {
        alone_ += extent.length;
        return success();
      }
      if (shared_.size() == room_) return Error(ENOBUFS);
      shared_.emplace_back(extent.physical, extent.physical + extent.length);
      return success();
    });
  }

  // The bytes of blocks that are flagged as shared, each counted once. `twice`: the file itself has some of them twice.
  struct Shared {
    uint64_t bytes = 0;
    bool twice = false;
  };
  Shared shared() {
    std::sort(shared_.begin(), shared_.end());
    Shared result;
    uint64_t covered = 0;
    for (const auto& [begin, end] : shared_) {
      result.twice = result.twice || begin < covered;
      result.bytes += end > covered ? end - std::max(begin, covered) : 0;
      covered = std::max(covered, end);
    }
    return result;
  }
  uint64_t alone() const { return alone_; }

 private:
  const size_t room_;
  uint64_t alone_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> shared_;  // begin, end on the disk
};

}  // namespace

// All sets of owners that blobs have, each with a number.
class Accounting::Sets {
 public:
  OwnerSet number_of(const std::vector<Owner>& owners) {
    const auto [at, fresh] = numbers_.try_emplace(owners, static_cast<OwnerSet>(sets_.size()));
    if (fresh) sets_.push_back(owners);
    return at->second;
  }
  const std::vector<std::vector<Owner>>& all() const { return sets_; }
  std::vector<std::vector<Owner>> grouped(const std::vector<Owner>& group_of) const {
    std::vector<std::vector<Owner>> groups;
    groups.reserve(sets_.size());
    for (const std::vector<Owner>& set : sets_) groups.push_back(groups_in(set, group_of));
    return groups;
  }
  static std::vector<Owner> groups_in(const std::vector<Owner>& owners, const std::vector<Owner>& group_of) {
    std::vector<Owner> groups;
    for (const Owner owner : owners) groups.push_back(group_of[owner]);
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    return groups;
  }

 private:
  std::map<std::vector<Owner>, OwnerSet> numbers_;
  std::vector<std::vector<Owner>> sets_;
};

Accounting::Accounting(const Tree& tree, const Index& index, const Blobs& blobs,
                       std::function<bool(InodeNumber)> open_for_writing, const AccountingLimits& limits)
    : tree_(tree),
      index_(index),
      blobs_(blobs),
      open_for_writing_(std::move(open_for_writing)),
      limits_(limits),
      cache_(blobs, limits.cache_bytes) {}

Result<Account> Accounting::account(const std::vector<AskedOwner>& asked) {
  const io::MutexLock one_at_a_time(turn_);
  std::vector<Owner> group_of{kNobody};
  for (const AskedOwner& owner : asked) group_of.push_back(static_cast<Owner>(owner.group + 1));
  const size_t groups = *std::max_element(group_of.begin(), group_of.end());

  Lengths lengths{std::vector<uint64_t>(asked.size() + 1), std::vector<uint64_t>(groups + 1)};
  Sets sets;
  TRY_ASSIGN(const std::vector<Holder> holders, find_holders(asked, group_of, sets, lengths));
  const std::vector<std::vector<Owner>> everybody(sets.all().size(), {0});
  std::array<DiskTally, 3> tallies{DiskTally(sets.all(), asked.size() + 1),
                                   DiskTally(sets.grouped(group_of), groups + 1), DiskTally(everybody, 1)};
  TRY(sweep(holders, tallies));

  const auto usage = [](const std::vector<uint64_t>& apparent, const DiskTally& tally, size_t i) {
    return Usage{apparent[i], tally.uses()[i].exclusive, tally.uses()[i].shared};
  };
  Account account;
  for (size_t i = 1; i <= asked.size(); ++i) account.owners.push_back(usage(lengths.owners, tallies[0], i));
  for (size_t i = 1; i <= groups; ++i) account.groups.push_back(usage(lengths.groups, tallies[1], i));
  account.nobody = usage(lengths.owners, tallies[0], kNobody);
  account.all = tallies[2].uses()[0].exclusive;
  return account;
}

// Finds the holders of all blobs, ascending: who has each blob, and who may change it.
Result<std::vector<Accounting::Holder>> Accounting::find_holders(const std::vector<AskedOwner>& asked,
                                                                 const std::vector<Owner>& group_of, Sets& sets,
                                                                 Lengths& lengths) const {
  TRY_ASSIGN(const std::vector<Named> names, read_names(index_, asked));
  struct Hold {
    BlobNumber blob = 0;
    Owner owner = kNobody;
    InodeNumber live = 0;
    auto operator<=>(const Hold&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
  };
  std::vector<Hold> holds;
  auto name = names.begin();
  TRY(index_.for_each_inode([&](InodeNumber number, const InodeRecord& record) -> Result<> {
    if (!record.is_regular()) return success();
    while (name != names.end() && name->inode < number) ++name;
    std::vector<Owner> owners;
    for (; name != names.end() && name->inode == number; ++name) owners.push_back(name->owner);
    if (owners.empty()) owners.push_back(kNobody);
    TRY_ASSIGN(const uint64_t length, length_of(record));
    for (const Owner owner : owners) {
      lengths.owners[owner] += length;
      holds.push_back({record.blob, owner, record.is_live_file() ? number : 0});
    }
    for (const Owner group : Sets::groups_in(owners, group_of)) lengths.groups[group] += length;
    return success();
  }));
  TRY_ASSIGN(const std::vector<BlobNumber> present, blobs_.list());
  for (const BlobNumber blob : present) holds.push_back({blob, kNobody, kUnnamed});
  std::sort(holds.begin(), holds.end());

  std::vector<Holder> holders;
  for (auto at = holds.begin(); at != holds.end();) {
    Holder holder{at->blob, 0, kUnnamed};
    std::vector<Owner> owners;
    for (; at != holds.end() && at->blob == holder.blob; ++at) {
      if (at->live == kUnnamed) continue;
      holder.live = at->live;
      if (owners.empty() || owners.back() != at->owner) owners.push_back(at->owner);
    }
    if (owners.empty()) owners.push_back(kNobody);
    holder.owners = sets.number_of(owners);
    holders.push_back(holder);
  }
  return holders;
}

Result<uint64_t> Accounting::length_of(const InodeRecord& record) const {
  if (!record.is_live_file()) return record.size;
  TRY_ASSIGN(const auto blob, none_if_gone(blobs_.stat(record.blob)));
  return blob ? static_cast<uint64_t>(blob->st_size) : 0;  // none: removed meanwhile, or damaged
}

Result<> Accounting::sweep(const std::vector<Holder>& holders, std::span<DiskTally> tallies) {
  bool first = true;
  const auto visit_all = [&](const VisitPiece& visit) -> Result<> {
    for (const Holder& holder : holders) {
      TRY(cache_.for_each(holder.blob, kind_of(holder), [&](const ExtentCache::Run& run) {
        if (run.physical != ExtentCache::kNoPlace)
          return visit({run.physical, run.physical + run.length, holder.owners});
        for (DiskTally& tally : tallies) {
          if (first) tally.add_unplaced(holder.owners, run.length);
        }
      }));
    }
    first = false;
    return success();
  };
  TRY_ASSIGN(windows_, sweep_disk(visit_all, limits_.pieces, tallies));
  std::vector<BlobNumber> blobs;
  blobs.reserve(holders.size());
  for (const Holder& holder : holders) blobs.push_back(holder.blob);
  cache_.keep(blobs);
  return success();
}

ExtentCache::Blob Accounting::kind_of(const Holder& holder) const {
  if (holder.live == 0) return ExtentCache::Blob::frozen;
  const bool idle =
      holder.live != kUnnamed && !open_for_writing_(holder.live) && !tree_.health().is_recovered(holder.live);
  return idle ? ExtentCache::Blob::idle : ExtentCache::Blob::busy;
}

Result<uint64_t> Accounting::exclusive(std::vector<InodeNumber> roots) {
  if (roots.empty()) return uint64_t{0};
  TRY_ASSIGN(const Account found, account({{std::move(roots), 0}}));
  return found.owners.front().exclusive;
}

Result<std::optional<Usage>> Accounting::usage_from_own_extents(InodeNumber file) const {
  TRY_ASSIGN(const InodeRecord record, index_.inode(file));
  if (!record.is_regular()) return Error(EINVAL);
  Usage usage;
  TRY_ASSIGN(usage.apparent, length_of(record));
  TRY_ASSIGN(const auto blob, none_if_gone(blobs_.open(record.blob, O_RDONLY)));
  if (!blob) return std::optional(usage);
  TRY_ASSIGN(const BlobRecord references, index_.blob(record.blob));
  OwnExtents extents(limits_.pieces / 8);
  const auto read = extents.read(blob->get());
  if (!read && read.error().errno_value() == ENOBUFS) return std::optional<Usage>();
  TRY(read);
  const auto shared = extents.shared();
  if (references.references > 1) {
    usage.shared = extents.alone() + shared.bytes;
    return std::optional(usage);
  }
  // A block that is flagged as shared and that the file has once belongs to another file, too. Of a block that the file
  // has twice that is not known.
  if (shared.twice) return std::optional<Usage>();
  usage.exclusive = extents.alone();
  usage.shared = shared.bytes;
  return std::optional(usage);
}

}  // namespace ckptfs::meta
