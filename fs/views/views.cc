#include "fs/views/views.h"

#include <algorithm>
#include <tuple>

#include "io/log.h"
#include "meta/formats/checkpoint.h"
#include "meta/steps.h"

namespace ckptfs::fs::views {
namespace {

using meta::Attributes;
using meta::InodeRecord;

constexpr uint64_t kBlock = 4096;  // st_blksize
constexpr uint64_t kSector = 512;  // unit of st_blocks

// A step's files, as the readers of formats see them.
class FilesOfStep : public meta::formats::StepFiles {
 public:
  explicit FilesOfStep(const meta::Tree& tree) : tree_(tree) {}

  Result<> collect(InodeNumber step) {
    step_ = step;
    return meta::for_each_file(tree_, step, [&](const std::vector<std::string>& path, InodeNumber inode) -> Result<> {
      TRY_ASSIGN(const Attributes attributes, tree_.attributes(inode));
      std::string joined;
      for (const std::string& name : path) joined += (joined.empty() ? "" : "/") + name;
      const struct stat& st = attributes.stat;
      fingerprint_ += joined + '\0' + std::to_string(inode) + ' ' + std::to_string(attributes.record.blob) + ' ' +
                      std::to_string(st.st_size) + ' ' + std::to_string(st.st_mtim.tv_sec) + ' ' +
                      std::to_string(st.st_mtim.tv_nsec) + ' ' + std::to_string(st.st_uid) + ' ' +
                      std::to_string(st.st_gid) + ' ';
      files_.push_back({std::move(joined), static_cast<uint64_t>(st.st_size)});
      inodes_.push_back(inode);
      TRY_ASSIGN(Access access, reachable(attributes.record.parent, {st.st_uid, st.st_gid, st.st_mode & 0777}));
      fingerprint_ += std::to_string(access.mode) + '\n';
      access_.push_back(access);
      time_ = std::max(time_, st.st_mtim, [](const timespec& a, const timespec& b) {
        return std::tie(a.tv_sec, a.tv_nsec) < std::tie(b.tv_sec, b.tv_nsec);
      });
      return success();
    });
  }

  const std::vector<File>& list() const override { return files_; }
  Result<io::Fd> open(uint32_t index) const override { return tree_.open_blob(inodes_[index], O_RDONLY); }

  const std::string& fingerprint() const { return fingerprint_; }
  const std::vector<InodeNumber>& inodes() const { return inodes_; }
  const std::vector<Access>& access() const { return access_; }
  timespec time() const { return time_; }

 private:
  // Who may read a file and also reach it through the step's folders.
  Result<Access> reachable(InodeNumber folder, Access access) const {
    while (folder != step_ && folder != 0 && folder != meta::kRootInode) {
      TRY_ASSIGN(const InodeRecord record, tree_.inode(folder));
      const bool same_owner = record.uid == access.uid && record.gid == access.gid;
      const uint32_t searchable = record.mode & 0111;
      if (searchable != 0111 && !same_owner) return Access{0, 0, 0400};
      access.mode &= searchable << 2 | ~uint32_t{0444};
      folder = record.parent;
    }
    return access;
  }

  const meta::Tree& tree_;
  InodeNumber step_ = 0;
  std::vector<File> files_;
  std::vector<InodeNumber> inodes_;
  std::vector<Access> access_;
  std::string fingerprint_;
  timespec time_{};
};

struct stat stat_of(InodeNumber number, mode_t type, const Access& access, uint64_t size, timespec time) {
  struct stat st {};
  st.st_ino = number;
  st.st_mode = type | access.mode;
  st.st_nlink = type == S_IFDIR ? 2 : 1;
  st.st_uid = access.uid;
  st.st_gid = access.gid;
  st.st_size = static_cast<off_t>(size);
  // As if it were stored: 0 would have tar take it for one hole.
  st.st_blocks = static_cast<blkcnt_t>((size + kSector - 1) / kSector);
  st.st_blksize = kBlock;
  st.st_atim = st.st_mtim = st.st_ctim = time;
  return st;
}

}  // namespace

std::shared_ptr<const Content> StepView::content(NodeNumber number) const {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<const Content>& known = contents_[number];
  if (auto content = known.lock()) return content;
  auto content = std::make_shared<const Content>(view.content(*view.node(number)));
  known = content;
  return content;
}

std::shared_ptr<const StepView> Views::cached(InodeNumber step) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  const auto found = cache_.find(step);
  if (found == cache_.end()) return nullptr;
  found->second.used = now;
  const bool believed = found->second.view->sealed || now - found->second.checked < kBelieved;
  return believed ? found->second.view : nullptr;
}

void Views::keep(InodeNumber step, Cached made) {
  const std::lock_guard lock(mutex_);
  cache_[step] = std::move(made);
  if (cache_.size() <= kMostCached) return;
  const auto oldest = std::min_element(cache_.begin(), cache_.end(),
                                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  cache_.erase(oldest);
}

Result<std::shared_ptr<const StepView>> Views::of_step(InodeNumber step) {
  if (auto view = cached(step)) return view;
  TRY_ASSIGN(const Attributes folder, tree_.attributes(step));
  FilesOfStep files(tree_);
  TRY(files.collect(step));
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    const auto known = cache_.find(step);
    if (known != cache_.end() && known->second.fingerprint == files.fingerprint()) {
      known->second.checked = now;
      return known->second.view;
    }
  }
  Source source;
  source.files = files.list();
  source.access = files.access();
  source.folder = {folder.stat.st_uid, folder.stat.st_gid, folder.stat.st_mode & 0555};
  source.map = meta::formats::read_checkpoint(files);
  for (const auto& [file, reason] : source.map.problems) {
    log::warn("the view of {}: {}{}{}", tree_.path_of(step), file, file.empty() ? "" : ": ", reason);
  }
  const bool sealed = (folder.record.flags & meta::kSealed) != 0;
  const auto view = std::make_shared<const StepView>(step, std::move(source), files.inodes(), files.time(), sealed);
  keep(step, {view, files.fingerprint(), now, now});
  return view;
}

// A directory that leads to steps, without asking whether it does.
Result<Views::Found> Views::leading(InodeNumber real) {
  TRY_ASSIGN(const Attributes attributes, tree_.attributes(real));
  if (!attributes.record.is_dir() || attributes.record.nlink == 0) return Error(ENOENT);
  const struct stat& st = attributes.stat;
  const InodeNumber number = number_of(real, 0);
  return Found{number, nullptr, 0, stat_of(number, S_IFDIR, {st.st_uid, st.st_gid, st.st_mode & 0555}, 0, st.st_mtim)};
}

Result<Views::Found> Views::in_view(std::shared_ptr<const StepView> view, NodeNumber number) const {
  const View::Node* const node = view->view.node(number);
  if (node == nullptr) return Error(ENOENT);
  const InodeNumber inode = number_of(view->step, number);
  Access access = node->access;
  if (number == 0) {  // who may enter is asked each time
    TRY_ASSIGN(const InodeRecord step, tree_.inode(view->step));
    access = {step.uid, step.gid, step.mode & 0555};
  }
  const struct stat st = stat_of(inode, View::type_of(*node), access, node->size, view->time);
  return Found{inode, std::move(view), number, st};
}

// A series does, and what a series lies in.
Result<bool> Views::leads_to_steps(InodeNumber directory) const {
  TRY_ASSIGN(const auto all, meta::list_series(tree_));
  for (InodeNumber at : all) {
    for (unsigned depth = 0; at != directory && at != meta::kRootInode && depth < 4096; ++depth) {
      TRY_ASSIGN(const InodeRecord record, tree_.inode(at));
      at = record.parent;
    }
    if (at == directory) return true;
  }
  return false;
}

Result<Views::Found> Views::lookup(InodeNumber directory, const std::string& name) {
  TRY_ASSIGN(Found in, find(directory));
  if (in.of) {
    const View::Node* const node = in.of->view.node(in.node);
    const auto child = node->children.find(name);
    if (child == node->children.end()) return Error(ENOENT);
    return in_view(std::move(in.of), child->second);
  }
  TRY_ASSIGN(const InodeNumber real, tree_.child(real_of(directory), name));
  return find(number_of(real, 0));
}

Result<Views::Found> Views::find(InodeNumber number) {
  const InodeNumber real = real_of(number);
  if (node_of(number) != 0) {
    TRY_ASSIGN(auto view, of_step(real));
    return in_view(std::move(view), node_of(number));
  }
  if (real == meta::kRootInode) return leading(real);
  TRY_ASSIGN(const InodeRecord record, tree_.inode(real));
  if (!record.is_dir() || record.nlink == 0 || !has_number(real)) return Error(ENOENT);
  TRY_ASSIGN(const InodeRecord above, tree_.inode(record.parent));
  TRY_ASSIGN(const bool step, meta::is_step(tree_, real));
  if (step && (record.flags & meta::kStep) != 0) {
    TRY_ASSIGN(const meta::StepRecord known, store_.index().step(real));
    if (known.being_removed) return Error(ENOENT);
  }
  if (step && (above.flags & meta::kSeries) != 0) {
    TRY_ASSIGN(auto view, of_step(real));
    return in_view(std::move(view), 0);
  }
  TRY_ASSIGN(const bool leads, leads_to_steps(real));
  return leads ? leading(real) : Error(ENOENT);
}

bool Views::may_keep(const Found& found) {
  const std::lock_guard lock(mutex_);
  if (opened_.size() >= kMostOpened) opened_.clear();
  std::weak_ptr<const StepView>& last = opened_[found.number];
  const bool same = last.lock() == found.of;
  last = found.of;
  return same;
}

Result<std::vector<meta::DirectoryEntry>> Views::list(InodeNumber directory) {
  TRY_ASSIGN(const Found in, find(directory));
  std::vector<meta::DirectoryEntry> entries;
  if (in.of) {
    const View& view = in.of->view;
    for (const auto& [name, child] : view.node(in.node)->children) {
      entries.push_back({name, number_of(in.of->step, child), View::type_of(*view.node(child))});
    }
    return entries;
  }
  TRY_ASSIGN(const auto children, tree_.list(real_of(directory)));
  for (const meta::DirectoryEntry& child : children) {
    if (!S_ISDIR(child.type) || !has_number(child.inode)) continue;
    const auto found = find(number_of(child.inode, 0));
    if (found) entries.push_back({child.name, found.value().number, S_IFDIR});
    if (!found && found.error().errno_value() != ENOENT) return found.error();
  }
  return entries;
}

}  // namespace ckptfs::fs::views
