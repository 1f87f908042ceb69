#include "meta/store/inspection.h"

#include <fcntl.h>

#include "io/lease.h"
#include "io/log.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {

class Inspection {
 public:
  Inspection(Tree& tree, const Index& index, const Blobs& blobs) : tree_(tree), index_(index), blobs_(blobs) {}

  Result<> run(const std::function<bool()>& go_on) {
    bool stopped = false;
    const auto inspected = index_.for_each_inode([&](InodeNumber number, const InodeRecord& record) -> Result<> {
      stopped = !go_on();
      if (stopped) return Error(ECANCELED);
      const bool has_data = record.is_regular() && record.nlink != 0 && !tree_.is_damaged(number);
      return has_data ? inspect_one(number, record) : success();
    });
    if (stopped) return success();
    if (inspected) tree_.health().set_inspected(survivors_write_);
    return inspected;
  }

 private:
  // A blob that is gone was removed since the start, since the start has found all that are missing.
  Result<> inspect_one(InodeNumber number, const InodeRecord& record) {
    auto inspected = record.is_live_file() ? inspect_live(number, record) : inspect_frozen(record);
    if (inspected || inspected.error().errno_value() == ENOENT) return success();
    if (inspected.error().errno_value() != EIO) return inspected;
    tree_.health().note_damaged(number);
    log::error("{}: damaged: {}", tree_.path_of(number), inspected.error().message());
    return success();
  }

  Result<> inspect_frozen(const InodeRecord& record) const {
    TRY_ASSIGN(const struct stat blob, blobs_.stat(record.blob));
    if (static_cast<uint64_t>(blob.st_size) >= record.size) return success();
    return Error(EIO, "its data is short");
  }

  Result<> inspect_live(InodeNumber number, const InodeRecord& record) {
    TRY_ASSIGN(const io::Fd fd, blobs_.open(record.blob, O_RDONLY));
    TRY_ASSIGN(const struct stat blob, io::stat_fd(fd.get()));
    if ((record.flags & kDigested) != 0) TRY(compare_with_digest(number, record, blob));
    const auto busy = io::has_writer(fd.get());
    if (!busy || busy.value()) survivors_write_.push_back(number);
    return success();
  }

  // After a crash the index may be older than the file, and may still call it unchanged.
  Result<> compare_with_digest(InodeNumber number, const InodeRecord& record, const struct stat& blob) {
    TRY_ASSIGN(const BlobRecord known, index_.blob(record.blob));
    const BlobDigest& digest = known.digest;
    if (digest.state != DigestState::taken && digest.state != DigestState::damaged) return success();
    const bool same = digest.length == static_cast<uint64_t>(blob.st_size) && !later(blob.st_mtim, digest.mtime) &&
                      !later(digest.mtime, blob.st_mtim);
    return same ? Result<>(success()) : tree_.note_changed(number);
  }

  Tree& tree_;
  const Index& index_;
  const Blobs& blobs_;
  std::vector<InodeNumber> survivors_write_;
};

}  // namespace

Result<> inspect(Tree& tree, const Index& index, const Blobs& blobs, const std::function<bool()>& go_on) {
  return tree.is_inspected() ? Result<>(success()) : Inspection(tree, index, blobs).run(go_on);
}

}  // namespace ckptfs::meta
