#include "fs/views/view_file.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "fs/views/shared_content.h"
#include "io/lease.h"
#include "io/log.h"

namespace ckptfs::fs {

BlockFile::~BlockFile() { backing_ids_.end(backing_id_); }

ViewFile::ViewFile(const ViewFileParts& parts, std::atomic<bool>& have_shared, const views::Views::ViewNode& found,
                   std::shared_ptr<const BlockFile> kept)
    : parts_(parts),
      have_shared_(have_shared),
      view_(found.of),
      content_(view_->content(found.node)),
      blocks_(std::move(kept)) {
  if (blocks_) return;
  for (const uint32_t file : content_->files()) {
    auto source = parts_.files.begin(view_->files[file].inode, false).file;
    const uint64_t changes = source->changes;
    sources_.emplace(file, Source{std::move(source), changes});
  }
}

Result<> ViewFile::begin() {
  for (const auto& [file, source] : sources_) {
    if (is_as_it_was(file)) continue;
    TRY_ASSIGN(const bool changed, has_changed(file));
    TRY_ASSIGN(const bool written, is_written(file));
    if (changed || written) return Error(ESTALE);
  }
  if (blocks_ || !parts_.modes.passthrough || parts_.tree.short_of_space()) return success();
  if (const auto shared = share(); !shared) not_shared(shared.error());
  return success();
}

ViewFile::~ViewFile() { close_sources(); }

Result<> ViewFile::claim(UserBudget& memory, uint32_t user) {
  const io::MutexLock lock(mutex_);
  if (hold_) return success();
  TRY_ASSIGN(hold_, view_->hold(memory, user, content_->memory()));
  return success();
}

void ViewFile::close_sources() {
  for (const auto& [index, source] : std::exchange(sources_, {})) parts_.files.end(source.file, false);
}

// It is no fault if files cannot be shared because they have changed or gone meanwhile.
void ViewFile::not_shared(const Error& why) const {
  if (const auto outdated = is_outdated(); outdated && outdated.value()) return;
  add(parts_.counters.view_fallbacks);
  log::warn("a view of {} is read by the daemon: {}", parts_.tree.path_of(view_->step), why.message());
}

Result<OpenFileTable::Backing> ViewFile::backing(uint32_t file) const {
  return parts_.files.backing(*sources_.at(file).file);
}

Result<bool> ViewFile::is_written(uint32_t file) const {
  TRY_ASSIGN(const auto opened, backing(file));
  TRY_ASSIGN(const views::Writers writers,
             views::writers_of(parts_.files, view_->files[file].inode, opened.descriptor));
  return writers.writing;
}

// Tells without a look at the file. False may be wrong.
bool ViewFile::is_as_it_was(uint32_t file) const {
  const views::SourceVersion& made = view_->files[file];
  return made.frozen || made.changed == parts_.files.writers_of(made.inode).changed;
}

// Does the file hold other bytes than those that the view was made from? Then nothing of the view is right any more.
Result<bool> ViewFile::has_changed(uint32_t file) const {
  if (is_as_it_was(file)) return false;
  const views::SourceVersion& made = view_->files[file];
  TRY_ASSIGN(const auto opened, backing(file));
  TRY_ASSIGN(const struct stat now, io::stat_fd(opened.descriptor));
  return now.st_size != made.size || now.st_ctim.tv_sec != made.ctime.tv_sec ||
         now.st_ctim.tv_nsec != made.ctime.tv_nsec;
}

Result<bool> ViewFile::is_outdated() const {
  for (const auto& [file, source] : sources_) {
    TRY_ASSIGN(const auto record, none_if_gone(parts_.tree.inode(source.file->inode)));
    if (!record || record->nlink == 0) return true;
    if (view_->files[file].frozen) continue;
    if (source.file->changes != source.changes) return true;
    TRY_ASSIGN(const bool changed, has_changed(file));
    TRY_ASSIGN(const bool written, is_written(file));
    if (changed || written) return true;
  }
  return false;
}

// Leaves blocks_ empty if sharing is not worth it, or if somebody is writing.
Result<> ViewFile::share() {
  const auto descriptor = [this](uint32_t file) -> Result<int> {
    have_shared_ = true;  // set before the first block is shared
    TRY_ASSIGN(const auto opened, backing(file));
    return opened.descriptor;
  };
  const auto piece = [this](uint32_t file, std::span<std::byte> buffer, uint64_t offset) {
    return read_piece(file, buffer, offset);
  };
  TRY_ASSIGN(const bool outdated_before, is_outdated());
  if (outdated_before) return success();
  for (const auto& [index, source] : sources_) {
    TRY_ASSIGN(const meta::InodeRecord record, parts_.tree.inode(source.file->inode));
    TRY(parts_.tree.refuse_suspect(source.file->inode, record));
  }
  auto shared = views::share_content(*content_, parts_.store.blobs().folder_fd(), descriptor, piece);
  for (const auto& [index, source] : sources_) {
    TRY_ASSIGN(const auto opened, backing(index));
    TRY(parts_.tree.check_write_back(source.file->inode, opened.descriptor));
  }
  TRY_ASSIGN(auto file, std::move(shared));
  if (!file) return success();
  TRY_ASSIGN(const bool outdated, is_outdated());
  if (outdated) return success();
  const auto backing_id = parts_.backing_ids.begin(file->get());
  if (!backing_id) return success();  // counted and logged there
  std::unordered_set<InodeNumber> made_from;
  for (const auto& [index, source] : sources_) made_from.insert(source.file->inode);
  blocks_ =
      std::make_shared<const BlockFile>(parts_.backing_ids, std::move(*file), backing_id.value(), std::move(made_from));
  return success();
}

Result<size_t> ViewFile::read_piece(uint32_t file, std::span<std::byte> buffer, uint64_t offset) const {
  TRY_ASSIGN(const auto opened, backing(file));
  TRY_ASSIGN(const size_t got, io::read_full(opened.descriptor, buffer, static_cast<off_t>(offset)));
  TRY_ASSIGN(const bool changed, has_changed(file));
  if (changed) return Error(ESTALE, "it has changed since this view of it was opened: open it again");
  return got;
}

Result<size_t> ViewFile::read(std::span<std::byte> buffer, uint64_t offset) const {
  if (blocks_) return io::read_full(blocks_->descriptor(), buffer, static_cast<off_t>(offset));
  return content_->read(buffer, offset, [this](uint32_t file, std::span<std::byte> target, uint64_t at) {
    auto read = read_piece(file, target, at);
    if (read) return read;
    return Result<size_t>(Error(read.error().errno_value(),
                                parts_.tree.path_of(view_->files[file].inode) + ": " + read.error().message()));
  });
}

// A node's number contains only a part of the hash of its version, so one in millions is the same for other bytes. Then
// the kernel still has pages of the file that is open.
Result<std::shared_ptr<ViewFile>> ViewFiles::known(const views::Views::ViewNode& found) const {
  const io::MutexLock lock(mutex_);
  const auto open = open_.find(found.number);
  auto file = open == open_.end() ? nullptr : open->second.lock();
  if (file && file->view()->version != found.of->version) {
    return Error(ESTALE, "an earlier version of this file of the view is still open");
  }
  return file;
}

std::shared_ptr<const BlockFile> ViewFiles::kept(const views::Views::ViewNode& found) const {
  const io::MutexLock lock(mutex_);
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&found](const Kept& one) {
    return one.number == found.number && one.version == found.of->version;
  });
  return kept == kept_.end() ? nullptr : kept->blocks;
}

bool ViewFiles::opens_quickly(const views::Views::ViewNode& found) const {
  const auto open = known(found);
  if (!open || open.value()) return true;
  if (!found.of->view.makes_quickly(*found.of->view.node(found.node))) return false;
  const bool may_share = parts_.modes.passthrough && static_cast<uint64_t>(found.stat.st_size) >= views::kLeastShared;
  return !may_share || kept(found);
}

std::shared_ptr<io::Mutex> ViewFiles::turn_for(InodeNumber number) {
  const io::MutexLock lock(mutex_);
  std::erase_if(turns_, [](const auto& turn) { return turn.second.expired(); });
  auto turn = turns_[number].lock();
  if (!turn) turns_[number] = turn = std::make_shared<io::Mutex>();
  return turn;
}

// The first open makes the file, and other opens wait for it, since the kernel may see only one backing file.
Result<std::shared_ptr<ViewFile>> ViewFiles::open(const views::Views::ViewNode& found) {
  if (auto file = known(found); !file || file.value()) return file;
  const auto turn = turn_for(found.number);
  const io::MutexLock making(*turn);
  if (auto file = known(found); !file || file.value()) return file;
  TRY_ASSIGN(auto file, make(found));
  const io::MutexLock lock(mutex_);
  if (open_.size() >= kManyOpen) std::erase_if(open_, [](const auto& one) { return one.second.expired(); });
  open_[found.number] = file;
  return file;
}

// A change of the step's files before the blocks are kept calls drop_blocks_of() in vain. So the files are checked once
// more after the blocks are kept.
Result<std::shared_ptr<ViewFile>> ViewFiles::make(const views::Views::ViewNode& found) {
  const uint64_t drops_before = drops_of_all_;
  auto known_blocks = kept(found);
  const bool fresh = !known_blocks;
  auto file = std::make_shared<ViewFile>(parts_, have_shared_, found, std::move(known_blocks));
  TRY(file->begin());
  if (!fresh || !file->blocks()) return file;
  keep({found.number, found.of->version, file->blocks()});
  const auto outdated = file->is_outdated();
  if (!outdated || outdated.value() || drops_of_all_ != drops_before) {
    drop_blocks_if([&](const Kept& kept) { return kept.blocks == file->blocks(); });
  }
  file->close_sources();
  return file;
}

void ViewFiles::keep(Kept kept) {
  Kept oldest;
  const io::MutexLock lock(mutex_);
  kept_.push_back(std::move(kept));
  if (kept_.size() > kMostKept) {
    oldest = std::move(kept_.front());
    kept_.pop_front();
  }
  keeps_any_ = true;
}

template <class Predicate>
void ViewFiles::drop_blocks_if(const Predicate& predicate) {
  std::vector<Kept> gone;  // declared before the lock, so that it is destroyed after it
  const io::MutexLock lock(mutex_);
  const auto stay = std::stable_partition(kept_.begin(), kept_.end(), std::not_fn(predicate));
  gone.assign(std::make_move_iterator(stay), std::make_move_iterator(kept_.end()));
  kept_.erase(stay, kept_.end());
  keeps_any_ = !kept_.empty();
}

void ViewFiles::drop_blocks_of(InodeNumber inode) {
  if (keeps_any_) drop_blocks_if([inode](const Kept& kept) { return kept.blocks->made_from().contains(inode); });
}

void ViewFiles::drop_all_blocks() {
  ++drops_of_all_;
  drop_blocks_if([](const Kept&) { return true; });
}

}  // namespace ckptfs::fs
