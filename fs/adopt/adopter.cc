#include "fs/adopt/adopter.h"

#include <fcntl.h>

#include <utility>

#include "fs/open/open_modes.h"
#include "io/lease.h"

namespace ckptfs::fs {

namespace {
constexpr int kUnsupportedFlags = O_DIRECT | O_SYNC | O_DSYNC | O_APPEND;
constexpr off_t kSmallest = 128 << 10;  // below, a copy costs less than its prediction
}  // namespace

bool Adopter::may_adopt(int flags) { return opens_for_writing(flags) && (flags & kUnsupportedFlags) == 0; }

std::unique_ptr<InlineBlockDedup> Adopter::begin(const OpenFile& file, const meta::InodeRecord& record,
                                                 const std::string& name, const meta::Caller& writer, int flags) {
  if ((record.flags & meta::kSwap) != 0 && (flags & O_ACCMODE) != O_WRONLY) return nullptr;
  auto prediction = predictor.predict(record.parent, name, writer);
  std::erase_if(prediction.candidates, [&](InodeNumber candidate) {
    const auto attributes = tree_.attributes(candidate);
    return !attributes || attributes.value().stat.st_size < kSmallest || candidate == file.inode;
  });
  if (prediction.candidates.empty()) return nullptr;
  using Source = InlineBlockDedup::Source;
  const InodeNumber target = file.inode;
  return std::make_unique<InlineBlockDedup>(
      file, name, std::move(prediction),
      InlineBlockDedup::Environment{
          .open_uncounted = [this](InodeNumber inode) { return tree_.open_blob(inode, O_RDONLY); },
          .open = [this](InodeNumber inode) { return open_source(inode); },
          .close = [this](const Source& source) { files_.end(source.file, false); },
          .begin_sharing = [this, target](const Source& source) { return begin_sharing(target, source); },
          .end_sharing =
              [this, target](const Source& source) {
                tree_.end_sharing(source.file->inode);
                tree_.end_sharing(target);
              },
          .write_out_before = [this, target](int blob,
                                             off_t offset) { return tree_.write_out(target, blob, 0, offset); },
          .check = [this](const Source& source, Result<> cloned) { return check(source, std::move(cloned)); },
      },
      counters_);
}

void Adopter::end(std::unique_ptr<InlineBlockDedup> dedup) {
  const auto right = dedup->was_right();
  if (!right) return;
  if (!*right) add(counters_.wrong_guesses);
  predictor.judge(dedup->name(), dedup->by(), *right);
}

// Counts the source as open until it is closed, so that its descriptor, its blob and its count of changes stay.
Result<InlineBlockDedup::Source> Adopter::open_source(InodeNumber inode) {
  InlineBlockDedup::Source source;
  source.file = files_.begin(inode, false).file;
  const auto opened = [&]() -> Result<> {
    TRY_SET(source.record, tree_.inode(inode));
    TRY(tree_.refuse_suspect(inode, source.record));
    TRY_ASSIGN(const auto backing, files_.backing(*source.file));
    source.descriptor = backing.descriptor;
    source.changes = source.file->changes.load();
    if (source.is_frozen() || files_.has_writers(*source.file)) return success();
    TRY_ASSIGN(const bool written, io::has_writer(source.descriptor));
    source.unchanged = !written;
    return success();
  }();
  if (opened) return source;
  files_.end(source.file, false);
  return opened.error();
}

// Whichever of the two is overwritten next takes new blocks.
Result<> Adopter::begin_sharing(InodeNumber target, const InlineBlockDedup::Source& source) {
  TRY_ASSIGN(const struct stat st, io::stat_fd(source.descriptor));
  TRY(tree_.begin_sharing(source.file->inode, st));
  auto begun = tree_.begin_sharing(target, st);
  if (!begun) tree_.end_sharing(source.file->inode);
  return begun;
}

// A clone can succeed although a write-back failed before it.
Result<> Adopter::check(const InlineBlockDedup::Source& source, Result<> cloned) {
  const InodeNumber inode = source.file->inode;
  if (cloned) return tree_.check_write_back(inode, source.record, source.descriptor);
  TRY(tree_.sync_file(inode, source.descriptor));
  return cloned;
}

}  // namespace ckptfs::fs
