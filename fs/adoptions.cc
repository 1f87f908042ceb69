#include "fs/adoptions.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "fs/filesystem.h"
#include "io/lease.h"

namespace ckptfs::fs {

namespace {
constexpr std::chrono::seconds kInterval{1};
constexpr size_t kMany = 64;            // closed copies that are settled at once: each holds a slot and a descriptor
constexpr off_t kSmallest = 128 << 10;  // below, a copy costs less than a clone
}  // namespace

bool Adoptions::may_adopt(int flags) {
  constexpr int kNever = O_DIRECT | O_SYNC | O_DSYNC | O_APPEND;
  return (flags & O_ACCMODE) == O_WRONLY && (flags & kNever) == 0;
}

Adoptions::~Adoptions() {
  if (const auto stopped = stop(); !stopped) spdlog::error("{}", stopped.error().message());
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
  settle_closed(take_all_closed());
  // Handles whose RELEASE never came.
  std::vector<std::shared_ptr<Adoption>> open;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [inode, adoption] : adoptions_) {
      const Adoption* const wanted = adoption.get();
      const auto same = [wanted](const Closed& one) { return one.adoption.get() == wanted; };
      if (std::none_of(closed_.begin(), closed_.end(), same)) open.push_back(adoption);
    }
  }
  for (std::shared_ptr<Adoption>& adoption : open) closed(std::move(adoption));
  settle_closed(take_all_closed());
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

// Counted as open until close_guess, so that its descriptor stays, and its count of changes.
Result<Adoption::Guess> Adoptions::open_guess(InodeNumber inode) {
  TRY_ASSIGN(const meta::InodeRecord record, fs_.tree.inode(inode));
  Adoption::Guess guess;
  guess.file = fs_.files.begin(inode, false).file;
  const auto backing = fs_.files.backing(*guess.file);
  if (!backing) {
    fs_.files.end(guess.file, false);
    return backing.error();
  }
  guess.descriptor = backing.value().descriptor;
  guess.frozen = (record.flags & meta::kFrozen) != 0;
  guess.changes = guess.file->changes.load();
  if (!guess.frozen && !fs_.files.has_writers(*guess.file)) {
    const auto written = io::has_writer(guess.descriptor);
    guess.unchanged = written && !written.value();
  }
  return guess;
}

void Adoptions::close_guess(const Adoption& adoption) {
  const InodeNumber inode = adoption.guess().file->inode;
  fs_.files.end(adoption.guess().file, false);
  const auto record = fs_.tree.inode(inode);
  // It shares its blocks now, and owes them should it be a live swap file.
  if (record && record.value().is_live_file() && (record.value().flags & meta::kSwap) != 0) {
    fs_.tree.finished_writing(inode);
  }
}

Result<std::shared_ptr<Adoption>> Adoptions::begin(const OpenFile& file, const std::string& name,
                                                   const meta::Caller& caller) {
  const auto nothing = std::shared_ptr<Adoption>();
  const auto guessed = guesses.find(caller.pid, name, [this](InodeNumber inode) { return fs_.files.name_of(inode); });
  if (!guessed || *guessed == file.inode) return nothing;
  settle_closed(take_closed(file.inode));
  if (find(file.inode)) return nothing;
  TRY_ASSIGN(const meta::InodeRecord record, fs_.tree.inode(file.inode));
  TRY_ASSIGN(Adoption::Guess guess, open_guess(*guessed));
  const auto adoption =
      std::make_shared<Adoption>(file.inode, name, std::move(guess), fs_.store.frontiers(), fs_.counters);

  const auto held = adoption->hold();
  {
    const std::lock_guard lock(mutex_);
    adoptions_.emplace(file.inode, adoption);
    count_.store(adoptions_.size(), std::memory_order_release);
  }
  // Whoever opens the file from here on finds the adoption, and waits to cut it.
  const auto begun = [&]() -> Result<bool> {
    if (!fs_.files.is_only_open(file)) return false;
    const auto size = io::stat_fd(adoption->guess().descriptor);
    if (!size || size.value().st_size < kSmallest) return false;
    {
      // A mapping that outlived its descriptor would see what nobody wrote.
      TRY_ASSIGN(const io::Fd probe, fs_.tree.open_blob(file.inode, O_RDONLY));
      const auto in_use = io::has_opener(probe.get());
      if (!in_use || in_use.value()) return false;
    }
    TRY_ASSIGN(io::Fd blob, fs_.tree.open_blob(file.inode, O_RDWR));
    adoption->prepare(held, std::move(blob), record.blob);
    return true;
  }();
  if (begun && begun.value()) return adoption;
  forget(*adoption);
  fs_.files.end(adoption->guess().file, false);
  if (!begun) return begun.error();
  return nothing;
}

void Adoptions::closed(std::shared_ptr<Adoption> adoption) {
  if (const auto cut = adoption->cut(); !cut) fs_.write_failed(adoption->inode(), "the end of its copy", cut.error());
  if (adoption->disappointed()) guesses.disappointed(adoption->name());
  close_guess(*adoption);
  if (adoption->is_settled()) return forget(*adoption);
  auto blob = fs_.tree.open_blob(adoption->inode(), O_RDONLY);
  if (!blob) {
    spdlog::warn("{}: not synced in the background: {}", adoption->name(), blob.error().message());
    return;
  }
  const std::lock_guard lock(mutex_);
  closed_.push_back({std::move(adoption), std::move(blob).value()});
  if (closed_.size() >= kMany) wake_.notify_one();
}

std::vector<Adoptions::Closed> Adoptions::take_all_closed() {
  const std::lock_guard lock(mutex_);
  return std::exchange(closed_, {});
}

std::vector<Adoptions::Closed> Adoptions::take_closed(InodeNumber inode) {
  std::vector<Closed> taken;
  if (count_.load(std::memory_order_acquire) == 0) return taken;
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(closed_.begin(), closed_.end(),
                                  [inode](const Closed& one) { return one.adoption->inode() == inode; });
  if (found == closed_.end()) return taken;
  taken.push_back(std::move(*found));
  closed_.erase(found);
  return taken;
}

Result<> Adoptions::cut(InodeNumber inode) {
  const auto adoption = find(inode);
  return adoption ? adoption->cut() : Result<>(success());
}

Result<> Adoptions::settle(InodeNumber inode, int blob, const std::function<Result<>()>& sync) {
  const auto adoption = find(inode);
  if (!adoption) return success();
  TRY(adoption->settle(blob, sync));
  forget(*adoption);
  return success();
}

std::optional<uint64_t> Adoptions::size(InodeNumber inode) const {
  const auto adoption = find(inode);
  return adoption ? adoption->size() : std::nullopt;
}

void Adoptions::run() {
  std::unique_lock lock(mutex_);
  while (running_) {
    wake_.wait_for(lock, kInterval, [this] { return !running_ || closed_.size() >= kMany; });
    std::vector<Closed> closed = std::exchange(closed_, {});
    lock.unlock();
    settle_closed(std::move(closed));
    lock.lock();
  }
}

void Adoptions::settle_closed(std::vector<Closed> closed) {
  for (Closed& one : closed) {
    const int blob = one.blob.get();
    if (const auto settled = one.adoption->settle(blob, [&] { return io::fdatasync_fd(blob); }); !settled) {
      spdlog::error("{}: not synced yet, trying again: {}", fs_.tree.path_of(one.adoption->inode()),
                    settled.error().message());
      const std::lock_guard lock(mutex_);
      closed_.push_back(std::move(one));
      continue;
    }
    forget(*one.adoption);
  }
}

}  // namespace ckptfs::fs
