// What things cost on the disk, whoever shares with whom: from the extents of all blobs. Plain `du` counts a shared
// block in each step; `ckptfs du` and the xattrs `bytes.{apparent,exclusive,shared}` count it here.
//
// A block of the disk is *exclusive* to an owner (a step, a series, a file, a set of folders) if each blob that has it
// is named only by inodes of that owner, through all of their names: then removing the owner frees it. Everything else
// the owner uses is *shared*. What is allocated past the end of a file counts. Blobs that nothing names (to be deleted,
// held open, ahead of a save) belong to nobody.
//
// Names are read as of one moment, blocks one file after the other: what changes meanwhile may count as it was before
// or after. What is removed meanwhile is no error. The disk is swept once, in windows, so memory is bounded whatever is
// stored (meta/accounting/disk_sweep.h). A file's own xattrs come from its own extents wherever these tell enough
// (usage_from_own_extents), so `getfattr -R` is not one sweep for each file.
//
// What is known of extents is kept (meta/accounting/extent_cache.h). No stat shows that two files were made to share
// blocks, so whoever does that calls forget().
//
// Thread safety: all of it. Lock: turn_, which guards nothing but the daemon's memory: one sweep of the disk at a time.
// No other lock is held with it; files are read under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "io/mutex.h"
#include "meta/accounting/disk_sweep.h"
#include "meta/accounting/extent_cache.h"
#include "meta/blobs/blobs.h"
#include "meta/index/index.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

struct Usage {
  uint64_t apparent = 0;   // lengths of its files; one with several names once
  uint64_t exclusive = 0;  // bytes on the disk that would be free if just this went
  uint64_t shared = 0;     // what else it uses on the disk, each block once
};

// Somebody whose share is asked for: what lies at and below `roots`, unless a nearer root above it is another's.
struct AskedOwner {
  std::vector<InodeNumber> roots;  // directories or regular files
  size_t group = 0;                // counted from 0; owners of one group are also counted together
};

struct Account {
  std::vector<Usage> owners;  // as asked
  std::vector<Usage> groups;
  Usage nobody;      // what nothing names, or what lies below no root
  uint64_t all = 0;  // bytes on the disk of all of them together, each block once
};

struct AccountingLimits {
  size_t pieces = size_t{1} << 20;        // of the disk, held at a time: 24 MiB
  size_t cache_bytes = size_t{24} << 20;  // for what is known of the extents of blobs
};

class Accounting {
 public:
  // `open_for_writing`: as OpenFiles has it.
  Accounting(const Tree& tree, const Index& index, const Blobs& blobs,
             std::function<bool(InodeNumber)> open_for_writing, const AccountingLimits& limits = {});

  Result<Account> account(const std::vector<AskedOwner>& owners);
  // The exclusive bytes of all of these together.
  Result<uint64_t> exclusive(std::vector<InodeNumber> roots);
  // The usage of one regular file, from its own extents alone. Right only if nothing but blobs shares its blocks. None
  // if its own extents do not tell; account() does.
  Result<std::optional<Usage>> usage_from_own_extents(InodeNumber file) const;

  // Its blocks have moved though nobody wrote it: to be called by who shared them (dedup), once that is done.
  void forget(BlobNumber blob) { cache_.forget(blob); }

  ExtentCache::Counts cache_counts() const { return cache_.counts(); }
  // How many windows the last sweep took.
  size_t windows() const { return windows_; }

 private:
  static constexpr InodeNumber kUnnamed = UINT64_MAX;
  struct Holder {
    BlobNumber blob = 0;
    OwnerSet owners = 0;
    InodeNumber live = 0;  // the one inode that may write it; 0: frozen; kUnnamed: nothing names it
  };
  struct Lengths {
    std::vector<uint64_t> owners, groups;
  };
  class Sets;

  Result<std::vector<Holder>> find_holders(const std::vector<AskedOwner>& asked, const std::vector<Owner>& group_of,
                                           Sets& sets, Lengths& lengths) const;
  Result<uint64_t> length_of(const InodeRecord& record) const;
  ExtentCache::Blob kind_of(const Holder& holder) const;
  Result<> sweep(const std::vector<Holder>& holders, std::span<DiskTally> tallies);

  const Tree& tree_;
  const Index& index_;
  const Blobs& blobs_;
  const std::function<bool(InodeNumber)> open_for_writing_;
  const AccountingLimits limits_;
  ExtentCache cache_;
  io::Mutex turn_;
  std::atomic<size_t> windows_{0};
};

}  // namespace ckptfs::meta
