#include "meta/store/recovery.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/fault.h"
#include "io/log.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kFilesAtOnce = 1000;  // in one change of the index, which is in memory until it is committed

class Recoverer {
 public:
  Recoverer(Index& index, const Blobs& blobs, Space& space) : index_(index), blobs_(blobs), space_(space) {}

  Result<Recovery> run() {
    TRY(compare_generations());
    TRY_ASSIGN(const uint64_t clean, index_.number(kCleanKey));
    recovery_.report.clean = clean != 0 && !recovery_.report.older_index;
    recovery_.start.inspected = recovery_.report.clean;
    TRY_ASSIGN(inode_limit_, index_.number(kInodeLimitKey));
    TRY_ASSIGN(blob_limit_, index_.number(kBlobLimitKey));
    TRY(read_blobs());
    if (!recovery_.report.clean) TRY(list_blobs());
    TRY(read_inodes());
    TRY(find_dead());
    TRY(raise_references());
    sweep_nameless();
    TRY(begin_generation());
    recovery_.start.next_inode = inode_limit_;
    recovery_.start.next_blob = blob_limit_;
    TRY_ASSIGN(recovery_.start.last_event, index_.last_event());
    return std::move(recovery_);
  }

 private:
  struct Known {
    BlobState state = BlobState::live;
    uint64_t references = 0;
    uint64_t names = 0;  // files that name it
    bool named_live = false;
    bool present = false;  // in blobs/; after a crash only
  };

  Result<> compare_generations() {
    TRY_ASSIGN(const uint64_t of_index, index_.generation());
    TRY_ASSIGN(const uint64_t of_blobs, blobs_.generation());
    generation_ = std::max(of_index, of_blobs);
    recovery_.report.older_index = of_index < of_blobs;
    if (recovery_.report.older_index) {
      log::error(
          "the index is older than blobs/: a copy of meta/ was put back; the tree is that of the copy, newer "
          "content stays in blobs/ without a name (ckptfs fsck lists it)");
    }
    return success();
  }

  Result<> begin_generation() {
    Batch batch(index_);
    batch.put_number(kCleanKey, 0);
    batch.allow_on_full_store();
    batch.put_number(kGenerationKey, generation_ + 1);
    TRY(index_.commit(std::move(batch)));
    TRY(index_.sync());
    return index_.ballast().spend_on([this] { return blobs_.set_generation(generation_ + 1); });
  }

  Result<> read_blobs() {
    return index_.for_each_blob([this](BlobNumber number, const BlobRecord& record) -> Result<> {
      blob_limit_ = std::max(blob_limit_, number + 1);
      known_.emplace(number, Known{record.state, record.references});
      return success();
    });
  }

  Result<> list_blobs() {
    TRY_ASSIGN(const std::vector<BlobNumber> present, blobs_.list());
    for (const BlobNumber number : present) {
      blob_limit_ = std::max(blob_limit_, number + 1);
      if (const auto known = known_.find(number); known != known_.end()) {
        known->second.present = true;
      } else {
        nameless_.push_back(number);
      }
    }
    return success();
  }

  // Finds the blobs that a durable record dooms. A blob that files name stays: its count was wrong, and its data is
  // there.
  Result<> find_dead() {
    for (auto at = known_.begin(); at != known_.end();) {
      const auto& [number, blob] = *at;
      const bool dead = (blob.state == BlobState::tentative || blob.state == BlobState::doomed) && blob.names == 0;
      if (!dead) {
        ++recovery_.report.blobs;
        ++at;
        continue;
      }
      // A newer index may have published a blob that this older one calls tentative. So the blob becomes nameless.
      if (recovery_.report.older_index && blob.state == BlobState::tentative) {
        TRY(forget(number));
        if (blob.present) nameless_.push_back(number);
      } else {
        recovery_.dead.push_back(number);
        ++recovery_.report.removed_blobs;
      }
      at = known_.erase(at);
    }
    return success();
  }

  Result<> forget(BlobNumber number) {
    TRY_ASSIGN(const BlobRecord record, index_.blob(number));
    Batch batch(index_);
    batch.erase_blob(number, record.digest);
    batch.allow_on_full_store();
    return index_.commit(std::move(batch));
  }

  // With a count that is too low the blob would be deleted while files name it. A count that is too high only costs
  // room, and fsck reports it.
  Result<> raise_references() {
    for (const auto& [number, known] : known_) {
      if (known.references >= known.names) continue;
      TRY_ASSIGN(BlobRecord blob, index_.blob(number));
      log::error("blob {}: the index counted {} files that name it, there are {}: corrected", Blobs::name(number),
                 known.references, known.names);
      blob.references = known.names;
      if (known.state != BlobState::live && known.state != BlobState::frozen) TRY(revive(number, known, blob));
      Batch batch(index_);
      batch.allow_on_full_store();
      batch.put_blob(number, blob);
      TRY(index_.commit(std::move(batch)));
      ++recovery_.report.raised_references;
    }
    return success();
  }

  Result<> revive(BlobNumber number, const Known& known, BlobRecord& blob) const {
    blob.state = known.named_live ? BlobState::live : BlobState::frozen;
    const auto st = blobs_.stat(number);
    if (!st) return st.error().errno_value() == ENOENT ? Result<>(success()) : st.error();  // damage shows elsewhere
    if (!known.named_live) blob.length = static_cast<uint64_t>(st.value().st_size);
    return success();
  }

  Result<> read_inodes() {
    TRY(index_.for_each_inode([this](InodeNumber number, const InodeRecord& record) -> Result<> {
      ++recovery_.report.inodes;
      inode_limit_ = std::max(inode_limit_, number + 1);
      space_.adjust_cow_reserve(0, record.cow_reserve);
      if (record.nlink == 0) recovery_.nameless.push_back(number);
      if (!record.is_regular()) return success();
      const auto blob = known_.find(record.blob);
      if (blob != known_.end()) {
        ++blob->second.names;
        blob->second.named_live = record.is_live_file();
      }
      if (recovery_.report.clean) return success();
      if (blob != known_.end() && blob->second.present) return check_file(number, record);
      recovery_.start.damaged.insert(number);
      return success();
    }));
    return commit_changed();
  }

  // After a crash every live file counts as changed since its last save.
  Result<> check_file(InodeNumber number, const InodeRecord& record) {
    if (!record.is_live_file()) return success();
    if (record.saved_blob != 0) {
      changed_.emplace_back(number, record).second.saved_blob = 0;
      if (changed_.size() == kFilesAtOnce) TRY(commit_changed());
    }
    return success();
  }

  Result<> commit_changed() {
    Batch batch(index_);
    batch.allow_on_full_store();
    for (const auto& [number, record] : changed_) batch.put(number, record);
    changed_.clear();
    return index_.commit(std::move(batch));
  }

  // A nameless blob is deleted only if it is empty. One with content may belong to a file that a newer index names: an
  // older copy of the index may have been put back, and a lost piece of index must never delete checkpoints.
  void sweep_nameless() {
    for (const BlobNumber number : nameless_) {
      const auto st = blobs_.stat(number);
      const off_t size = st ? st.value().st_size : 0;
      if (st && size == 0 && blobs_.remove(number)) {
        ++recovery_.report.removed_blobs;
      } else {  // or it cannot be removed from a full or failing disk, which is no reason to refuse the mount
        ++recovery_.report.orphan_blobs;
        log::warn("blobs/{}: {} bytes that nothing names; kept (ckptfs fsck lists such blobs)", Blobs::name(number),
                  size);
      }
    }
    index_.note_blobs_changed();
  }

  Index& index_;
  const Blobs& blobs_;
  Space& space_;
  Recovery recovery_;
  uint64_t generation_ = 0;
  InodeNumber inode_limit_ = 0;
  BlobNumber blob_limit_ = 0;
  std::unordered_map<BlobNumber, Known> known_;
  std::vector<BlobNumber> nameless_;                          // in blobs/, and unknown to the index
  std::vector<std::pair<InodeNumber, InodeRecord>> changed_;  // to be committed
};

}  // namespace

Result<Recovery> recover(Index& index, const Blobs& blobs, Space& space) {
  return Recoverer(index, blobs, space).run();
}

}  // namespace ckptfs::meta
