#include "fs/open/open_files.h"

#include <algorithm>
#include <utility>

namespace ckptfs::fs {

namespace {
constexpr unsigned kErrnoBits = 16;
constexpr uint64_t kErrnoMask = (uint64_t{1} << kErrnoBits) - 1;
}  // namespace

void ErrorSequence::record(int errno_value) {
  uint64_t old = state_.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    next = ((old >> kErrnoBits) + 1) << kErrnoBits | (static_cast<uint64_t>(errno_value) & kErrnoMask);
  } while (!state_.compare_exchange_weak(old, next, std::memory_order_acq_rel));
}

int ErrorSequence::check(std::atomic<uint64_t>& seen) const {
  const uint64_t current = now();
  return seen.exchange(current, std::memory_order_acq_rel) == current ? 0 : static_cast<int>(current & kErrnoMask);
}

void OpenFileTable::add_lookup(InodeNumber inode, const std::string& name) {
  const io::MutexLock lock(mutex_);
  Node& node = nodes_[inode];
  ++node.lookups;
  if (node.name != name) node.name = name;
}

std::string OpenFileTable::name_of(InodeNumber inode) const {
  const io::MutexLock lock(mutex_);
  const auto node = nodes_.find(inode);
  return node == nodes_.end() ? std::string() : node->second.name;
}

bool OpenFileTable::take_if_gone(InodeNumber inode) {
  const auto node = nodes_.find(inode);
  if (node == nodes_.end() || (node->second.lookups != 0 && !node->second.taken_out)) return false;
  if (open_.contains(inode)) return false;
  const bool reap = node->second.dropped;
  nodes_.erase(node);
  return reap;
}

void OpenFileTable::forget(InodeNumber inode, uint64_t count) {
  bool reap = false;
  {
    const io::MutexLock lock(mutex_);
    const auto node = nodes_.find(inode);
    if (node == nodes_.end()) return;
    node->second.lookups -= std::min(node->second.lookups, count);
    reap = take_if_gone(inode);
  }
  if (reap) environment_.reap(inode);
}

void OpenFileTable::dropped(InodeNumber inode) { lost_last_name(inode, false); }

void OpenFileTable::taken_out(InodeNumber inode) { lost_last_name(inode, true); }

void OpenFileTable::lost_last_name(InodeNumber inode, bool taken_out) {
  bool reap = false;
  {
    const io::MutexLock lock(mutex_);
    Node& lost = nodes_[inode];
    lost.dropped = true;
    lost.taken_out = taken_out;
    reap = take_if_gone(inode);
  }
  environment_.about_to_change(inode);
  if (reap) environment_.reap(inode);
}

OpenFileTable::OpenCount OpenFileTable::begin(InodeNumber inode, bool writing) {
  OpenCount begun;
  {
    const io::MutexLock lock(mutex_);
    auto& file = open_[inode];
    if (!file) file = std::make_shared<OpenFile>(inode);
    ++file->opens;
    if (writing) {
      ++file->writers;
      ++file->changes;
      note_change(inode);
    }
    begun = {file, writing && file->writers == 1, nodes_.contains(inode)};
  }
  if (begun.first_writer) environment_.about_to_change(inode);
  return begun;
}

Result<OpenFileTable::Backing> OpenFileTable::backing(OpenFile& file) {
  {
    const io::MutexLock lock(mutex_);
    if (file.descriptor) return Backing{file.descriptor.get(), file.backing_id};
  }
  TRY_ASSIGN(io::Fd descriptor, environment_.open_blob(file.inode));
  const Result<int> id = environment_.open_backing(descriptor.get());
  int mine = id ? id.value() : 0;
  Backing used;
  {
    const io::MutexLock lock(mutex_);
    if (!file.descriptor) {
      file.descriptor = std::move(descriptor);
      file.backing_id = std::exchange(mine, 0);
    }
    used = {file.descriptor.get(), file.backing_id};
  }
  if (mine != 0) environment_.close_backing(mine);
  return used;
}

bool OpenFileTable::is_only_open(const OpenFile& file) const {
  const io::MutexLock lock(mutex_);
  return file.opens == 1;
}

bool OpenFileTable::has_writers(const OpenFile& file) const {
  const io::MutexLock lock(mutex_);
  return file.writers > 0;
}

void OpenFileTable::note_change(InodeNumber inode) {
  if (changed_.size() >= kMostChanged) {
    changed_.clear();
    oldest_change_ = last_change_;
  }
  changed_[inode] = ++last_change_;
}

OpenFileTable::Writers OpenFileTable::writers_of(InodeNumber inode) const {
  const io::MutexLock lock(mutex_);
  Writers writers;
  const auto changed = changed_.find(inode);
  writers.changed = changed == changed_.end() ? oldest_change_ : changed->second;
  const auto file = open_.find(inode);
  writers.any = file != open_.end() && file->second->writers > 0;
  const auto closing = writers.any ? file->second->closing : std::nullopt;
  writers.closing = closing && std::chrono::steady_clock::now() - *closing < kClosing;
  writers.past_daemon = file != open_.end() && file->second->backing_id != 0;
  return writers;
}

void OpenFileTable::changes(InodeNumber inode) {
  {
    const io::MutexLock lock(mutex_);
    const auto file = open_.find(inode);
    if (file != open_.end()) ++file->second->changes;
    note_change(inode);
  }
  environment_.about_to_change(inode);
}

void OpenFileTable::allocates(InodeNumber inode) {
  const io::MutexLock lock(mutex_);
  const auto file = open_.find(inode);
  if (file != open_.end()) file->second->allocated = true;
}

void OpenFileTable::closing(OpenFile& file) {
  const io::MutexLock lock(mutex_);
  file.closing = std::chrono::steady_clock::now();
}

void OpenFileTable::forget_closed_before(std::chrono::steady_clock::time_point time) {
  const io::MutexLock lock(mutex_);
  std::erase_if(closed_, [time](const auto& closed) { return closed.second < time; });
}

std::unordered_set<InodeNumber> OpenFileTable::used_since(std::chrono::steady_clock::time_point since) const {
  const io::MutexLock lock(mutex_);
  std::unordered_set<InodeNumber> used;
  for (const auto& [inode, when] : closed_) {
    if (when >= since) used.insert(inode);
  }
  for (const auto& [inode, file] : open_) used.insert(inode);
  return used;
}

void OpenFileTable::record_error(InodeNumber inode, int errno_value) {
  const io::MutexLock lock(mutex_);
  const auto file = open_.find(inode);
  if (file != open_.end()) file->second->errors.record(errno_value);
}

bool OpenFileTable::end(const std::shared_ptr<OpenFile>& file, bool writing) {
  bool last_writer = false;
  bool reap = false;
  io::Fd descriptor;
  int backing_id = 0;
  {
    const io::MutexLock lock(mutex_);
    if (writing) {
      last_writer = --file->writers == 0;
      if (last_writer) file->closing.reset();
      note_change(file->inode);
    }
    if (--file->opens == 0) {
      descriptor = std::move(file->descriptor);
      backing_id = std::exchange(file->backing_id, 0);
      open_.erase(file->inode);
      closed_[file->inode] = std::chrono::steady_clock::now();
      reap = take_if_gone(file->inode);
    }
  }
  if (backing_id != 0) environment_.close_backing(backing_id);
  descriptor.reset();
  if (reap) environment_.reap(file->inode);
  return last_writer;
}

std::vector<InodeNumber> OpenFileTable::open_for_writing() const {
  const io::MutexLock lock(mutex_);
  std::vector<InodeNumber> inodes;
  for (const auto& [inode, file] : open_) {
    if (file->writers > 0) inodes.push_back(inode);
  }
  return inodes;
}

size_t OpenFileTable::open_count() const {
  const io::MutexLock lock(mutex_);
  return open_.size();
}

size_t OpenFileTable::remembered_count() const {
  const io::MutexLock lock(mutex_);
  return nodes_.size();
}

OpenFileTable::Leftover OpenFileTable::clear() {
  Leftover leftover;
  std::unordered_map<InodeNumber, std::shared_ptr<OpenFile>> open;
  {
    const io::MutexLock lock(mutex_);
    for (const auto& [inode, node] : nodes_) {
      if (node.dropped) leftover.reap.push_back(inode);
    }
    for (const auto& [inode, file] : open_) {
      if (file->writers > 0) leftover.writing.push_back(inode);
    }
    nodes_.clear();
    open = std::exchange(open_, {});
  }
  return leftover;
}

bool OpenFileTable::open_for_writing(InodeNumber inode) const {
  const io::MutexLock lock(mutex_);
  const auto file = open_.find(inode);
  return file != open_.end() && file->second->writers > 0;
}

bool OpenFileTable::open_at_all(InodeNumber inode) const {
  const io::MutexLock lock(mutex_);
  return open_.contains(inode);
}

bool OpenFileTable::writing() const {
  const io::MutexLock lock(mutex_);
  for (const auto& [inode, file] : open_) {
    if (file->writers > 0) return true;
  }
  return false;
}

Result<> OpenFileTable::with_writers(const std::vector<InodeNumber>& inodes,
                                     const std::function<Result<>(OpenFile&, int descriptor)>& work) {
  for (const InodeNumber inode : inodes) {
    std::shared_ptr<OpenFile> file;
    int descriptor = -1;
    {
      const io::MutexLock lock(mutex_);
      const auto found = open_.find(inode);
      if (found == open_.end() || found->second->writers == 0 || !found->second->descriptor) continue;
      file = found->second;
      descriptor = file->descriptor.get();
      ++file->opens;
    }
    Result<> done = work(*file, descriptor);
    end(file, false);
    TRY(std::move(done));
  }
  return success();
}

}  // namespace ckptfs::fs
