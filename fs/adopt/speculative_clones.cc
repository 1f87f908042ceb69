#include "fs/adopt/speculative_clones.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "fs/open/open_modes.h"
#include "io/lease.h"
#include "io/log.h"

namespace ckptfs::fs {

namespace {
constexpr std::chrono::seconds kInterval{1};
constexpr size_t kMany = 64;  // closed copies that are made durable at once: each holds a slot and a descriptor
constexpr int kUnsupportedFlags = O_DIRECT | O_SYNC | O_DSYNC | O_APPEND;
constexpr off_t kSmallest = 128 << 10;  // below, a copy costs less than a clone
}  // namespace

SpeculativeClones::SpeculativeClones(meta::Store& store, OpenFileTable& files, Notifications& notifications,
                                     WriteErrors& write_errors, Counters& counters)
    : predictor(store.tree(), [&files](InodeNumber inode) { return files.name_of(inode); }),
      store_(store),
      tree_(store.tree()),
      files_(files),
      notifications_(notifications),
      write_errors_(write_errors),
      counters_(counters) {}

bool SpeculativeClones::may_adopt(int flags) { return opens_for_writing(flags) && (flags & kUnsupportedFlags) == 0; }
bool SpeculativeClones::may_clone(int flags) { return may_adopt(flags) && (flags & O_ACCMODE) == O_WRONLY; }

SpeculativeClones::~SpeculativeClones() {
  if (const auto stopped = stop(); !stopped) log::error("{}", stopped.error().message());
}

void SpeculativeClones::start() {
  const io::MutexLock lock(mutex_);
  running_ = true;
  thread_ = std::thread([this] { run(); });
}

Result<> SpeculativeClones::stop() {
  {
    const io::MutexLock lock(mutex_);
    running_ = false;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  make_closed_durable();
  // The clones of handles whose RELEASE never came.
  std::vector<std::shared_ptr<SpeculativeClone>> open;
  {
    const io::MutexLock lock(mutex_);
    for (const auto& [inode, clone] : clones_) {
      if (std::find(closed_.begin(), closed_.end(), clone) == closed_.end()) open.push_back(clone);
    }
  }
  for (const std::shared_ptr<SpeculativeClone>& clone : open) closed(clone);
  make_closed_durable();
  const io::MutexLock lock(mutex_);
  if (clones_.empty()) return success();
  return Error(EIO, std::to_string(clones_.size()) + " copies could not be synced");
}

std::shared_ptr<SpeculativeClone> SpeculativeClones::find(InodeNumber inode) const {
  if (count_.load(std::memory_order_acquire) == 0) return nullptr;
  const io::MutexLock lock(mutex_);
  const auto found = clones_.find(inode);
  return found == clones_.end() ? nullptr : found->second;
}

void SpeculativeClones::forget(const SpeculativeClone& clone) {
  const io::MutexLock lock(mutex_);
  const auto found = clones_.find(clone.inode());
  if (found == clones_.end() || found->second.get() != &clone) return;
  clones_.erase(found);
  count_.store(clones_.size(), std::memory_order_release);
}

// Counts the source as open until closed(), so that its descriptor and its count of changes stay.
Result<SpeculativeClone::Source> SpeculativeClones::open_source(InodeNumber inode) {
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(inode));
  TRY(tree_.refuse_suspect(inode, record));
  SpeculativeClone::Source source;
  source.file = files_.begin(inode, false).file;
  const auto backing = files_.backing(*source.file);
  if (!backing) {
    files_.end(source.file, false);
    return backing.error();
  }
  source.descriptor = backing.value().descriptor;
  source.frozen = (record.flags & meta::kFrozen) != 0;
  source.changes = source.file->changes.load();
  if (!source.frozen && !files_.has_writers(*source.file)) {
    const auto written = io::has_writer(source.descriptor);
    source.unchanged = written && !written.value();
  }
  return source;
}

// A source that was cloned shares its blocks, so its COW reserve is counted again. A clone can succeed although a
// write-back failed before it, so that is checked, too.
Result<> SpeculativeClones::note_shared(const SpeculativeClone::Source& source, Result<> cloned) {
  const InodeNumber inode = source.file->inode;
  if (!cloned) {
    TRY(tree_.sync_file(inode, source.descriptor));
    return cloned;
  }
  tree_.finished_writing(inode);
  return tree_.check_write_back(inode, source.descriptor);
}

std::shared_ptr<SpeculativeClone> SpeculativeClones::begin(const OpenFile& file, const std::string& name,
                                                           const SourcePredictor::Prediction& prediction) {
  auto begun = try_begin(file, name, prediction);
  if (begun) return std::move(begun).value();
  if (begun.error().errno_value() != ENOENT) {  // the source may have been removed this moment
    add(counters_.adoption_fallbacks);
    log::warn("{} is copied, not adopted: {}", name, begun.error().message());
  }
  return nullptr;
}

Result<std::shared_ptr<SpeculativeClone>> SpeculativeClones::try_begin(const OpenFile& file, const std::string& name,
                                                                       const SourcePredictor::Prediction& prediction) {
  const auto nothing = std::shared_ptr<SpeculativeClone>();
  if (prediction.inode == file.inode || find(file.inode)) return nothing;
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(file.inode));
  TRY_ASSIGN(SpeculativeClone::Source source, open_source(prediction.inode));
  source.by = prediction.by;
  const auto shared = [this, source](Result<> cloned) { return note_shared(source, std::move(cloned)); };
  const auto clone =
      std::make_shared<SpeculativeClone>(file.inode, name, source, store_.written_ends(), counters_, shared);
  const io::MutexLock held(clone->mutex());
  {
    const io::MutexLock lock(mutex_);
    clones_.emplace(file.inode, clone);
    count_.store(clones_.size(), std::memory_order_release);
  }
  // From here on each open of the file finds the clone, and waits for its lock to truncate it.
  const auto prepared = [&]() REQUIRES(clone->mutex()) -> Result<bool> {
    if (!files_.is_only_open(file)) return false;
    TRY_ASSIGN(const struct stat size, io::stat_fd(clone->source().descriptor));
    if (size.st_size < kSmallest) return false;
    {
      // A mapping whose descriptor is closed would show bytes that nobody wrote.
      TRY_ASSIGN(const io::Fd probe, tree_.open_blob(file.inode, O_RDONLY));
      TRY_ASSIGN(const bool in_use, io::has_opener(probe.get()));
      if (in_use) return false;
    }
    TRY_ASSIGN(io::Fd blob, tree_.open_blob(file.inode, O_RDWR));
    clone->prepare(std::move(blob), record.blob);
    return true;
  }();
  if (prepared && prepared.value()) return clone;
  forget(*clone);
  files_.end(clone->source().file, false);
  if (!prepared) return prepared.error();
  return nothing;
}

std::unique_ptr<InlineBlockDedup> SpeculativeClones::begin_blocks(const OpenFile& file, const std::string& name,
                                                                  std::vector<InodeNumber> candidates) {
  std::erase_if(candidates, [&](InodeNumber candidate) {
    const auto attributes = tree_.attributes(candidate);
    return !attributes || attributes.value().stat.st_size < kSmallest || candidate == file.inode;
  });
  if (candidates.empty()) return nullptr;
  return std::make_unique<InlineBlockDedup>(
      name, std::move(candidates),
      InlineBlockDedup::Environment{
          [this](InodeNumber inode) { return tree_.open_blob(inode, O_RDONLY); },
          [this](InodeNumber inode) { return open_source(inode); },
          [this](const SpeculativeClone::Source& source) { files_.end(source.file, false); },
          [this](const SpeculativeClone::Source& source, Result<> cloned) {
            return note_shared(source, std::move(cloned));
          },
      },
      counters_);
}

void SpeculativeClones::closed(const std::shared_ptr<SpeculativeClone>& clone) {
  if (const auto truncated = clone->truncate_to_written(); !truncated)
    write_errors_.failed(clone->inode(), WriteFailure::truncate_to_written, truncated.error());
  // The kernel may have cached a size from before the truncation.
  notifications_.attributes_changed(clone->inode());
  if (const auto right = clone->was_right()) {
    if (!*right) add(counters_.wrong_guesses);
    predictor.judge(clone->name(), clone->source().by, *right);
  }
  files_.end(clone->source().file, false);
  if (clone->is_durable()) return forget(*clone);
  const io::MutexLock lock(mutex_);
  closed_.push_back(clone);
  many_ = closed_.size() >= kMany;
  if (many_) wake_.notify_one();
}

std::vector<std::shared_ptr<SpeculativeClone>> SpeculativeClones::take_closed() {
  const io::MutexLock lock(mutex_);
  many_ = false;
  return std::exchange(closed_, {});
}

Result<> SpeculativeClones::truncate_to_written(InodeNumber inode) {
  const auto clone = find(inode);
  return clone ? clone->truncate_to_written() : Result<>(success());
}

Result<> SpeculativeClones::make_durable(InodeNumber inode, int blob, const std::function<Result<>()>& sync) {
  const auto clone = find(inode);
  if (!clone) return success();
  const auto sync_or_empty = [&]() -> Result<> {
    auto synced = sync();
    if (!synced) TRY(empty(inode));
    return synced;
  };
  TRY(clone->make_durable(blob, sync_or_empty));
  forget(*clone);
  return success();
}

// Where the disk refused what was written, the blob holds blocks of the source, which nobody may see here. The file
// stays suspect.
Result<> SpeculativeClones::empty(InodeNumber inode) {
  TRY_ASSIGN(const io::Fd blob, tree_.open_blob(inode, O_WRONLY));
  if (::ftruncate(blob.get(), 0) != 0) return last_error("ftruncate");
  TRY(io::fsync_fd(blob.get()));  // before the file counts as durable
  log::error("{}: it is emptied, as the copy of it did not reach the disk", tree_.path_of(inode));
  notifications_.attributes_changed(inode);
  return success();
}

std::optional<uint64_t> SpeculativeClones::size(InodeNumber inode) const {
  const auto clone = find(inode);
  return clone ? clone->size() : std::nullopt;
}

void SpeculativeClones::run() {
  io::MutexLock lock(mutex_);
  while (running_) {
    wake_.wait_for(mutex_, kInterval, [this]() REQUIRES(mutex_) { return !running_ || many_; });
    lock.unlock();
    make_closed_durable();
    lock.lock();
  }
}

void SpeculativeClones::make_closed_durable() {
  for (std::shared_ptr<SpeculativeClone>& clone : take_closed()) {
    const auto durable = make_durable_in_background(*clone);
    if (durable) {
      forget(*clone);
      continue;
    }
    log::error("{}: not synced yet, trying again: {}", tree_.path_of(clone->inode()), durable.error().message());
    const io::MutexLock lock(mutex_);
    closed_.push_back(std::move(clone));
  }
}

Result<> SpeculativeClones::make_durable_in_background(SpeculativeClone& clone) {
  const InodeNumber inode = clone.inode();
  const auto blob = tree_.open_blob(inode, O_RDONLY);
  if (!blob && blob.error().errno_value() == ENOENT) {  // it was removed
    clone.abandon();
    return success();
  }
  if (!blob) return blob.error();
  return clone.make_durable(blob.value().get(), [&]() -> Result<> {
    auto synced = tree_.sync_file(inode, blob.value().get());
    if (!synced) {
      files_.record_error(inode, synced.error().errno_value());
      write_errors_.failed(inode, WriteFailure::fdatasync, synced.error());
    }
    if (synced) return success();
    TRY(empty(inode));
    // It is suspect from now on, durably: there is nothing more to wait for.
    const auto record = tree_.inode(inode);
    return record && !tree_.write_back().check(record.value().blob) ? Result<>(success()) : synced;
  });
}

}  // namespace ckptfs::fs
