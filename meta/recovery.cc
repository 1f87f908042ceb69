#include "meta/recovery.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>

#include "io/fault.h"
#include "io/lease.h"
#include "io/log.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {

class Recoverer {
 public:
  Recoverer(Index& index, const Blobs& blobs, const Frontiers& frontiers, Space& space)
      : index_(index), blobs_(blobs), frontiers_(frontiers), space_(space), batch_(index) {}

  Result<Recovery> run() {
    TRY(compare_generations());
    TRY_ASSIGN(const uint64_t clean, index_.number(kCleanKey));
    recovery_.report.clean = clean != 0 && !recovery_.report.older_index;
    TRY_ASSIGN(inode_limit_, index_.number(kInodeLimitKey));
    TRY_ASSIGN(blob_limit_, index_.number(kBlobLimitKey));
    TRY(read_blobs());
    TRY(read_inodes());
    TRY(remove_dead());
    TRY(raise_references());
    if (!recovery_.report.clean) TRY(sweep_nameless());
    batch_.put_number(kCleanKey, 0);
    batch_.allow_on_full_store();
    batch_.put_number(kGenerationKey, generation_ + 1);
    TRY(index_.commit(std::move(batch_)));
    TRY(index_.sync());
    TRY(index_.ballast().spend_on([this] { return blobs_.set_generation(generation_ + 1); }));
    recovery_.start.next_inode = inode_limit_;
    recovery_.start.next_blob = blob_limit_;
    return std::move(recovery_);
  }

 private:
  struct Known {
    BlobState state = BlobState::live;
    uint64_t length = 0;  // frozen only
    uint64_t references = 0;
    uint64_t names = 0;  // files that name it
    bool named_live = false;
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

  Result<> read_blobs() {
    return index_.for_each_blob([this](BlobNumber number, const BlobRecord& record) -> Result<> {
      blob_limit_ = std::max(blob_limit_, number + 1);
      known_.emplace(number, Known{record.state, record.length, record.references});
      return success();
    });
  }

  // Blobs that a durable record dooms go now, but for those which files name: a count was wrong, and the data is there.
  Result<> remove_dead() {
    for (auto at = known_.begin(); at != known_.end();) {
      const auto& [number, blob] = *at;
      const bool dead = (blob.state == BlobState::tentative || blob.state == BlobState::doomed) && blob.names == 0;
      if (dead) {
        TRY_ASSIGN(const BlobRecord record, index_.blob(number));
        // A newer index may have published what an older one calls tentative: it becomes nameless.
        if (recovery_.report.older_index && blob.state == BlobState::tentative) {
          batch_.erase_blob(number, record.digest);
        } else {
          TRY(remove(number, record));
        }
        at = known_.erase(at);
      } else {
        ++recovery_.report.blobs;
        ++at;
      }
    }
    return success();
  }

  // A count that is too low would have the blob deleted while files name it. One too high costs room, and fsck says so.
  Result<> raise_references() {
    for (const auto& [number, known] : known_) {
      if (known.references >= known.names) continue;
      TRY_ASSIGN(BlobRecord blob, batch_.blob(number));
      log::error("blob {}: the index counted {} files that name it, there are {}: corrected", Blobs::name(number),
                 known.references, known.names);
      blob.references = known.names;
      if (known.state != BlobState::live && known.state != BlobState::frozen) TRY(revive(number, known, blob));
      batch_.put_blob(number, blob);
      ++recovery_.report.raised_references;
    }
    return success();
  }

  Result<> revive(BlobNumber number, const Known& known, BlobRecord& blob) const {
    blob.state = known.named_live ? BlobState::live : BlobState::frozen;
    const auto st = blobs_.stat(number);
    if (!st) return st.error().errno_value() == ENOENT ? Result<>(success()) : st.error();  // damage, which shows
    if (!known.named_live) blob.length = static_cast<uint64_t>(st.value().st_size);
    return success();
  }

  Result<> remove(BlobNumber number, const BlobRecord& record) {
    TRY(blobs_.remove(number));
    batch_.erase_blob(number, record.digest);
    removed_.insert(number);
    ++recovery_.report.removed_blobs;
    return success();
  }

  Result<> read_inodes() {
    return index_.for_each_inode([this](InodeNumber number, const InodeRecord& record) -> Result<> {
      ++recovery_.report.inodes;
      inode_limit_ = std::max(inode_limit_, number + 1);
      space_.adjust_owed(0, record.owed);
      if (record.nlink == 0) recovery_.nameless.push_back(number);
      if (!record.is_regular()) return success();
      if (const auto blob = known_.find(record.blob); blob != known_.end()) {
        ++blob->second.names;
        blob->second.named_live = record.is_live_file();
      }
      if (!recovery_.report.clean) TRY(check_file(number, record));
      return success();
    });
  }

  // After a crash every live blob counts as changed, and may still be written by a process that outlived the daemon.
  Result<> check_file(InodeNumber number, const InodeRecord& record) {
    const auto st = blobs_.stat(record.blob);
    if (!st && st.error().errno_value() != ENOENT) return st.error();
    const auto known = known_.find(record.blob);
    const bool whole = st && known != known_.end() &&
                       (record.is_live_file() || static_cast<uint64_t>(st.value().st_size) >= known->second.length);
    if (!whole) {
      recovery_.report.damaged.push_back(number);
      recovery_.start.damaged.insert(number);
      return success();
    }
    if (!record.is_live_file()) return success();
    TRY(mark_changed(number, record, st.value()));
    if (Blobs::is_unsettled(st.value())) {
      if (const auto done = cut(record.blob, static_cast<uint64_t>(st.value().st_size)); !done) {
        log::error("inode {}: a copy that was under way cannot be cut: {}", number, done.error().message());
        recovery_.report.damaged.push_back(number);
        recovery_.start.damaged.insert(number);
        recovery_.uncut.push_back(record.blob);
        return success();
      }
    }
    TRY_ASSIGN(const io::Fd fd, blobs_.open(record.blob, O_RDONLY));
    const auto busy = io::has_writer(fd.get());
    if (!busy || busy.value()) recovery_.start.recovered.insert(number);
    return success();
  }

  // What the index says of an unchanged file may be older than the file.
  Result<> mark_changed(InodeNumber number, const InodeRecord& record, const struct stat& blob_stat) {
    InodeRecord changed = record;
    changed.saved_blob = 0;
    if ((record.flags & kDigested) != 0) {
      TRY_ASSIGN(BlobRecord blob, batch_.blob(record.blob));
      BlobDigest& digest = blob.digest;
      const bool same = digest.length == static_cast<uint64_t>(blob_stat.st_size) &&
                        !later(blob_stat.st_mtim, digest.mtime) && !later(digest.mtime, blob_stat.st_mtim);
      if (!same) {
        changed.flags &= ~uint32_t{kDigested};
        if (digest.state != DigestState::none) digest.state = DigestState::changed;
        batch_.put_blob(record.blob, blob);
      }
    }
    if (changed.saved_blob != record.saved_blob || changed.flags != record.flags) batch_.put(number, changed);
    return success();
  }

  // The blob may hold what was guessed and never written (meta/frontiers.h). Durable before it counts as settled.
  Result<> cut(BlobNumber blob, uint64_t size) {
    const uint64_t end = frontiers_.left(blob).value_or(0);
    TRY(io::fault_point("recovery.cut"));
    TRY_ASSIGN(const io::Fd fd, blobs_.open(blob, O_RDWR));
    if (end < size && ::ftruncate(fd.get(), static_cast<off_t>(end)) != 0) return last_error(Blobs::name(blob));
    TRY(io::fsync_fd(fd.get()));
    TRY(Blobs::set_unsettled(fd.get(), false));
    ++recovery_.report.cut_files;
    return io::fsync_fd(fd.get());
  }

  // A nameless blob is deleted only if it is empty. One with content may belong to a file that a newer index names: an
  // older copy of the index may have been put back, and a lost piece of index must never delete checkpoints.
  Result<> sweep_nameless() {
    TRY_ASSIGN(const std::vector<BlobNumber> present, blobs_.list());
    for (const BlobNumber number : present) {
      blob_limit_ = std::max(blob_limit_, number + 1);
      if (known_.contains(number) || removed_.contains(number)) continue;
      TRY_ASSIGN(const struct stat st, blobs_.stat(number));
      if (st.st_size == 0) {
        TRY(remove(number, {}));
      } else {
        ++recovery_.report.orphan_blobs;
        log::warn("blobs/{}: {} bytes that nothing names; kept (ckptfs fsck lists such blobs)", Blobs::name(number),
                  st.st_size);
      }
    }
    index_.note_blobs_changed();
    return success();
  }

  Index& index_;
  const Blobs& blobs_;
  const Frontiers& frontiers_;
  Space& space_;
  Batch batch_;
  Recovery recovery_;
  uint64_t generation_ = 0;
  InodeNumber inode_limit_ = 0;
  BlobNumber blob_limit_ = 0;
  std::unordered_map<BlobNumber, Known> known_;
  std::unordered_set<BlobNumber> removed_;
};

}  // namespace

Result<Recovery> recover(Index& index, const Blobs& blobs, const Frontiers& frontiers, Space& space) {
  return Recoverer(index, blobs, frontiers, space).run();
}

}  // namespace ckptfs::meta
