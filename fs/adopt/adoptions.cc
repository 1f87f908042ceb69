#include "fs/adopt/adoptions.h"

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
constexpr size_t kMany = 64;  // closed copies that are settled at once: each holds a slot and a descriptor
constexpr int kNever = O_DIRECT | O_SYNC | O_DSYNC | O_APPEND;
constexpr off_t kSmallest = 128 << 10;  // below, a copy costs less than a clone
}  // namespace

Adoptions::Adoptions(meta::Store& store, OpenFileTable& files, Notifications& notifications, WriteErrors& write_errors,
                     Counters& counters)
    : guesses(store.tree(), [&files](InodeNumber inode) { return files.name_of(inode); }),
      store_(store),
      tree_(store.tree()),
      files_(files),
      notifications_(notifications),
      write_errors_(write_errors),
      counters_(counters) {}

bool Adoptions::may_adopt(int flags) { return opens_for_writing(flags) && (flags & kNever) == 0; }
bool Adoptions::may_clone(int flags) { return may_adopt(flags) && (flags & O_ACCMODE) == O_WRONLY; }

Adoptions::~Adoptions() {
  if (const auto stopped = stop(); !stopped) log::error("{}", stopped.error().message());
}

void Adoptions::start() {
  const std::lock_guard lock(mutex_);
  running_ = true;
  thread_ = std::thread([this] { run(); });
}

Result<> Adoptions::stop() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  settle_closed();
  // Handles whose RELEASE never came.
  std::vector<std::shared_ptr<Adoption>> open;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [inode, adoption] : adoptions_) {
      if (std::find(closed_.begin(), closed_.end(), adoption) == closed_.end()) open.push_back(adoption);
    }
  }
  for (const std::shared_ptr<Adoption>& adoption : open) closed(adoption);
  settle_closed();
  const std::lock_guard lock(mutex_);
  if (adoptions_.empty()) return success();
  return Error(EIO, std::to_string(adoptions_.size()) + " copies could not be synced");
}

std::shared_ptr<Adoption> Adoptions::find(InodeNumber inode) const {
  if (count_.load(std::memory_order_acquire) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = adoptions_.find(inode);
  return found == adoptions_.end() ? nullptr : found->second;
}

void Adoptions::forget(const Adoption& adoption) {
  const std::lock_guard lock(mutex_);
  const auto found = adoptions_.find(adoption.inode());
  if (found == adoptions_.end() || found->second.get() != &adoption) return;
  adoptions_.erase(found);
  count_.store(adoptions_.size(), std::memory_order_release);
}

// Counted as open until closed(), so that its descriptor stays, and its count of changes.
Result<Adoption::Guess> Adoptions::open_guess(InodeNumber inode) {
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(inode));
  TRY(tree_.refuse_suspect(inode, record));
  Adoption::Guess guess;
  guess.file = files_.begin(inode, false).file;
  const auto backing = files_.backing(*guess.file);
  if (!backing) {
    files_.end(guess.file, false);
    return backing.error();
  }
  guess.descriptor = backing.value().descriptor;
  guess.frozen = (record.flags & meta::kFrozen) != 0;
  guess.changes = guess.file->changes.load();
  if (!guess.frozen && !files_.has_writers(*guess.file)) {
    const auto written = io::has_writer(guess.descriptor);
    guess.unchanged = written && !written.value();
  }
  return guess;
}

// A guess that was cloned shares its blocks, and owes them should it be a live swap file. A clone that succeeds tells
// nothing of a write-back that failed before it.
Result<> Adoptions::note_shared(const Adoption::Guess& guess, Result<> cloned) {
  const InodeNumber inode = guess.file->inode;
  if (!cloned) {
    TRY(tree_.sync_file(inode, guess.descriptor));
    return cloned;
  }
  tree_.finished_writing(inode);
  return tree_.check_write_back(inode, guess.descriptor);
}

std::shared_ptr<Adoption> Adoptions::begin(const OpenFile& file, const std::string& name,
                                           const Guesses::Found& guessed) {
  auto begun = try_begin(file, name, guessed);
  if (begun) return std::move(begun).value();
  if (begun.error().errno_value() != ENOENT) {  // the guess may have been removed this moment
    add(counters_.adoption_fallbacks);
    log::warn("{} is copied, not adopted: {}", name, begun.error().message());
  }
  return nullptr;
}

Result<std::shared_ptr<Adoption>> Adoptions::try_begin(const OpenFile& file, const std::string& name,
                                                       const Guesses::Found& guessed) {
  const auto nothing = std::shared_ptr<Adoption>();
  if (guessed.inode == file.inode || find(file.inode)) return nothing;
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(file.inode));
  TRY_ASSIGN(Adoption::Guess guess, open_guess(guessed.inode));
  guess.by = guessed.by;
  const auto shared = [this, guess](Result<> cloned) { return note_shared(guess, std::move(cloned)); };
  const auto adoption = std::make_shared<Adoption>(file.inode, name, guess, store_.frontiers(), counters_, shared);
  const auto held = adoption->hold();
  {
    const std::lock_guard lock(mutex_);
    adoptions_.emplace(file.inode, adoption);
    count_.store(adoptions_.size(), std::memory_order_release);
  }
  // Whoever opens the file from here on finds the adoption, and waits to cut it.
  const auto prepared = [&]() -> Result<bool> {
    if (!files_.is_only_open(file)) return false;
    TRY_ASSIGN(const struct stat size, io::stat_fd(adoption->guess().descriptor));
    if (size.st_size < kSmallest) return false;
    {
      // A mapping that outlived its descriptor would see what nobody wrote.
      TRY_ASSIGN(const io::Fd probe, tree_.open_blob(file.inode, O_RDONLY));
      TRY_ASSIGN(const bool in_use, io::has_opener(probe.get()));
      if (in_use) return false;
    }
    TRY_ASSIGN(io::Fd blob, tree_.open_blob(file.inode, O_RDWR));
    adoption->prepare(held, std::move(blob), record.blob);
    return true;
  }();
  if (prepared && prepared.value()) return adoption;
  forget(*adoption);
  files_.end(adoption->guess().file, false);
  if (!prepared) return prepared.error();
  return nothing;
}

std::unique_ptr<BlockAdoption> Adoptions::begin_blocks(const OpenFile& file, const std::string& name,
                                                       std::vector<InodeNumber> candidates) {
  std::erase_if(candidates, [&](InodeNumber candidate) {
    const auto attributes = tree_.attributes(candidate);
    return !attributes || attributes.value().stat.st_size < kSmallest || candidate == file.inode;
  });
  if (candidates.empty()) return nullptr;
  return std::make_unique<BlockAdoption>(
      name, std::move(candidates),
      BlockAdoption::Environment{
          [this](InodeNumber inode) { return tree_.open_blob(inode, O_RDONLY); },
          [this](InodeNumber inode) { return open_guess(inode); },
          [this](const Adoption::Guess& guess) { files_.end(guess.file, false); },
          [this](const Adoption::Guess& guess, Result<> cloned) { return note_shared(guess, std::move(cloned)); },
      },
      counters_);
}

void Adoptions::closed(const std::shared_ptr<Adoption>& adoption) {
  if (const auto cut = adoption->cut(); !cut) write_errors_.failed(adoption->inode(), WriteFailure::cut, cut.error());
  // What the kernel was told before the cut was the size then.
  notifications_.attributes_changed(adoption->inode());
  if (const auto right = adoption->was_right()) {
    if (!*right) add(counters_.wrong_guesses);
    guesses.judge(adoption->name(), adoption->guess().by, *right);
  }
  files_.end(adoption->guess().file, false);
  if (adoption->is_settled()) return forget(*adoption);
  const std::lock_guard lock(mutex_);
  closed_.push_back(adoption);
  many_ = closed_.size() >= kMany;
  if (many_) wake_.notify_one();
}

std::vector<std::shared_ptr<Adoption>> Adoptions::take_closed() {
  const std::lock_guard lock(mutex_);
  many_ = false;
  return std::exchange(closed_, {});
}

Result<> Adoptions::cut(InodeNumber inode) {
  const auto adoption = find(inode);
  return adoption ? adoption->cut() : Result<>(success());
}

Result<> Adoptions::settle(InodeNumber inode, int blob, const std::function<Result<>()>& sync) {
  const auto adoption = find(inode);
  if (!adoption) return success();
  const auto sync_or_empty = [&]() -> Result<> {
    auto synced = sync();
    if (!synced) TRY(empty(inode));
    return synced;
  };
  TRY(adoption->settle(blob, sync_or_empty));
  forget(*adoption);
  return success();
}

// Where the disk refused what was written lie the blocks of the guess, which nobody may see here. The file is suspect,
// and stays so.
Result<> Adoptions::empty(InodeNumber inode) {
  TRY_ASSIGN(const io::Fd blob, tree_.open_blob(inode, O_WRONLY));
  if (::ftruncate(blob.get(), 0) != 0) return last_error("ftruncate");
  TRY(io::fsync_fd(blob.get()));  // before it counts as settled
  log::error("{}: it is emptied, as the copy of it did not reach the disk", tree_.path_of(inode));
  notifications_.attributes_changed(inode);
  return success();
}

std::optional<uint64_t> Adoptions::size(InodeNumber inode) const {
  const auto adoption = find(inode);
  return adoption ? adoption->size() : std::nullopt;
}

void Adoptions::run() {
  std::unique_lock lock(mutex_);
  while (running_) {
    wake_.wait_for(lock, kInterval, [this] { return !running_ || many_; });
    lock.unlock();
    settle_closed();
    lock.lock();
  }
}

void Adoptions::settle_closed() {
  for (std::shared_ptr<Adoption>& adoption : take_closed()) {
    const auto settled = settle_in_background(*adoption);
    if (settled) {
      forget(*adoption);
      continue;
    }
    log::error("{}: not synced yet, trying again: {}", tree_.path_of(adoption->inode()), settled.error().message());
    const std::lock_guard lock(mutex_);
    closed_.push_back(std::move(adoption));
  }
}

Result<> Adoptions::settle_in_background(Adoption& adoption) {
  const InodeNumber inode = adoption.inode();
  const auto blob = tree_.open_blob(inode, O_RDONLY);
  if (!blob && blob.error().errno_value() == ENOENT) {  // it was removed
    adoption.abandon();
    return success();
  }
  if (!blob) return blob.error();
  return adoption.settle(blob.value().get(), [&]() -> Result<> {
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
