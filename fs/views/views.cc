#include "fs/views/views.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "io/digest.h"
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
  FilesOfStep(const meta::Tree& tree, const std::function<bool(InodeNumber)>& is_written)
      : tree_(tree), is_written_(is_written) {}

  Result<> collect(InodeNumber step) {
    step_ = step;
    return meta::for_each_file(tree_, step, [&](const std::vector<std::string>& path, InodeNumber inode) -> Result<> {
      auto attributes = tree_.attributes(inode);
      if (!attributes && attributes.error().errno_value() == ENOENT) return success();  // it was removed this moment
      if (!attributes) return attributes.error();
      TRY_ASSIGN(const auto access, reachable(path, attributes.value().stat));
      if (access) add(path, inode, attributes.value(), *access);
      return success();
    });
  }

  const std::vector<File>& list() const override { return files_; }
  Result<io::Fd> open(uint32_t index) const override {
    auto file = tree_.open_blob(made_[index].inode, O_RDONLY);
    const int failed = file ? 0 : file.error().errno_value();
    if (failed == EMFILE || failed == ENFILE || failed == ENOMEM) short_of_ = file.error();
    return file;
  }
  // What a file could not be opened for, and is not the file's fault.
  const std::optional<Error>& short_of() const { return short_of_; }

  const std::string& fingerprint() const { return fingerprint_; }
  const std::vector<Made>& made() const { return made_; }
  const std::vector<Access>& access() const { return access_; }
  const std::vector<meta::formats::Problem>& problems() const { return problems_; }
  timespec time() const { return time_; }

 private:
  void add(const std::vector<std::string>& path, InodeNumber inode, const Attributes& attributes,
           const Access& access) {
    std::string joined;
    for (const std::string& name : path) joined += (joined.empty() ? "" : "/") + name;
    const struct stat& st = attributes.stat;
    const bool frozen = (attributes.record.flags & meta::kFrozen) != 0;
    const bool written = !frozen && is_written_(inode);
    fingerprint_ += joined + '\0';
    for (const uint64_t part :
         {inode, attributes.record.blob, static_cast<uint64_t>(st.st_size), static_cast<uint64_t>(st.st_mtim.tv_sec),
          static_cast<uint64_t>(st.st_mtim.tv_nsec), static_cast<uint64_t>(access.uid),
          static_cast<uint64_t>(access.gid), static_cast<uint64_t>(access.mode), static_cast<uint64_t>(written)}) {
      fingerprint_ += std::to_string(part) + ' ';
    }
    // While it is written it may be anything: a clone of what it will probably hold, or half of what it will be.
    if (written) return problems_.push_back({joined, "it is being written"});
    files_.push_back({std::move(joined), static_cast<uint64_t>(st.st_size)});
    made_.push_back({inode, frozen, st.st_size, st.st_mtim});
    access_.push_back(access);
    time_ = std::max(time_, st.st_mtim, [](const timespec& a, const timespec& b) {
      return std::tie(a.tv_sec, a.tv_nsec) < std::tie(b.tv_sec, b.tv_nsec);
    });
  }

  // Who may read a file and also reach it through the step's folders. None: a folder is gone.
  Result<std::optional<Access>> reachable(const std::vector<std::string>& path, const struct stat& file) {
    Access access{file.st_uid, file.st_gid, file.st_mode & 0777};
    InodeNumber at = step_;
    for (size_t depth = 0; depth + 1 < path.size(); ++depth) {
      const auto folder = tree_.child(at, path[depth]);
      const auto record = folder ? tree_.inode(folder.value()) : folder.error();
      if (!record && record.error().errno_value() == ENOENT) return std::optional<Access>();
      if (!record) return record.error();
      const bool same_owner = record.value().uid == access.uid && record.value().gid == access.gid;
      const uint32_t searchable = record.value().mode & 0111;
      if (searchable != 0111 && !same_owner) return std::optional(Access{0, 0, 0400});
      access.mode &= searchable << 2 | ~uint32_t{0444};
      at = folder.value();
    }
    return std::optional(access);
  }

  const meta::Tree& tree_;
  const std::function<bool(InodeNumber)>& is_written_;
  InodeNumber step_ = 0;
  std::vector<File> files_;
  std::vector<Made> made_;
  std::vector<meta::formats::Problem> problems_;
  mutable std::optional<Error> short_of_;
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

// Names and reasons come from the step: whatever is in them, each is one line.
std::string on_one_line(std::string text) {
  constexpr size_t most = 300;
  if (text.size() > most) text = text.substr(0, most) + "...";
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < ' '; }, '?');
  return text;
}

void log_problems(const std::string& step, const std::vector<meta::formats::Problem>& problems) {
  constexpr size_t most = 10;
  for (size_t at = 0; at < std::min(most, problems.size()); ++at) {
    const auto& [file, reason] = problems[at];
    log::warn("the view of {}: {}", step, on_one_line(file + (file.empty() ? "" : ": ") + reason));
  }
  if (problems.size() > most) log::warn("the view of {}: {} more (manifest.json)", step, problems.size() - most);
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

Result<std::shared_ptr<const StepView>> Views::of_step(InodeNumber step, Look look) {
  if (auto view = cached(step); view && (view->sealed || look == Look::believing)) return view;
  TRY_ASSIGN(const Attributes folder, tree_.attributes(step));
  FilesOfStep files(tree_, is_written_);
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
  const io::Digest version = io::digest_of(std::as_bytes(std::span(files.fingerprint())));
  source.version.assign(reinterpret_cast<const char*>(version.data()), version.size());
  source.map = meta::formats::read_checkpoint(files);
  if (files.short_of()) return *files.short_of();  // the next one who asks may have better luck
  source.map.problems.insert(source.map.problems.end(), files.problems().begin(), files.problems().end());
  log_problems(tree_.path_of(step), source.map.problems);
  const bool sealed = (folder.record.flags & meta::kSealed) != 0;
  const auto view = std::make_shared<const StepView>(step, std::move(source), files.made(), files.time(), sealed);
  keep(step, {view, files.fingerprint(), now, now});
  return view;
}

Result<Views::Found> Views::real_directory(InodeNumber real) {
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
  const struct stat st = stat_of(inode, View::type_of(*node), node->access, node->size, view->time);
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

// A step that is being removed is out of views.
Result<bool> Views::is_step_of_series(InodeNumber real, const InodeRecord& record) const {
  if (real == meta::kRootInode) return false;
  TRY_ASSIGN(const bool step, meta::is_step(tree_, real));
  if (!step) return false;
  TRY_ASSIGN(const InodeRecord above, tree_.inode(record.parent));
  if ((above.flags & meta::kSeries) == 0) return false;
  if ((record.flags & meta::kStep) == 0) return true;
  TRY_ASSIGN(const meta::StepRecord known, store_.index().step(real));
  return !known.being_removed;
}

Result<Views::Found> Views::lookup(InodeNumber directory, const std::string& name) {
  const InodeNumber real = real_of(directory);
  TRY_ASSIGN(const InodeRecord record, tree_.inode(real));
  TRY_ASSIGN(const bool step, is_step_of_series(real, record));
  if (!step && node_of(directory) == 0) {
    TRY_ASSIGN(const InodeNumber child, tree_.child(real, name));
    return find(number_of(child, 0));
  }
  TRY_ASSIGN(auto view, of_step(real));
  const View::Node* const node = view->view.node(node_of(directory));
  if (node == nullptr) return Error(ESTALE);
  const auto child = node->children.find(name);
  if (child == node->children.end()) return Error(ENOENT);
  return in_view(std::move(view), child->second);
}

Result<Views::Found> Views::find(InodeNumber number) {
  const InodeNumber real = real_of(number);
  if (node_of(number) != 0) {
    auto view = of_step(real);
    if (view && view.value()->view.node(node_of(number)) != nullptr) {
      return in_view(std::move(view).value(), node_of(number));
    }
    // Of an earlier version, or of a step that is gone: whoever has it open keeps it.
    const std::lock_guard lock(mutex_);
    const auto known = opened_.find(number);
    auto open = known == opened_.end() ? nullptr : known->second.lock();
    return open ? in_view(std::move(open), node_of(number)) : Error(view ? ESTALE : view.error().errno_value());
  }
  if (real == meta::kRootInode) return real_directory(real);
  TRY_ASSIGN(const InodeRecord record, tree_.inode(real));
  if (!record.is_dir() || record.nlink == 0 || !has_number(real)) return Error(ENOENT);
  TRY_ASSIGN(const bool step, is_step_of_series(real, record));
  TRY_ASSIGN(const bool leads, step ? Result<bool>(true) : leads_to_steps(real));
  return leads ? real_directory(real) : Error(ENOENT);
}

Result<Views::Found> Views::find_now(InodeNumber number) {
  if (node_of(number) == 0) return find(number);
  TRY_ASSIGN(auto view, of_step(real_of(number), Look::again));
  if (view->view.node(node_of(number)) == nullptr) return Error(ESTALE);
  return in_view(std::move(view), node_of(number));
}

void Views::opened(const Found& found) {
  const std::lock_guard lock(mutex_);
  if (opened_.size() >= kMostOpened) std::erase_if(opened_, [](const auto& one) { return one.second.expired(); });
  opened_[found.number] = found.of;
}

Result<std::vector<meta::DirectoryEntry>> Views::list(InodeNumber directory) {
  const InodeNumber real = real_of(directory);
  TRY_ASSIGN(const InodeRecord record, tree_.inode(real));
  TRY_ASSIGN(const bool step, is_step_of_series(real, record));
  std::vector<meta::DirectoryEntry> entries;
  if (step || node_of(directory) != 0) {
    TRY_ASSIGN(const auto view, of_step(real));
    const View::Node* const node = view->view.node(node_of(directory));
    if (node == nullptr) return Error(ESTALE);
    for (const auto& [name, child] : node->children) {
      entries.push_back({name, number_of(real, child), View::type_of(*view->view.node(child))});
    }
    return entries;
  }
  TRY_ASSIGN(const auto children, tree_.list(real));
  for (const meta::DirectoryEntry& child : children) {
    if (!S_ISDIR(child.type) || !has_number(child.inode)) continue;
    const auto found = find(number_of(child.inode, 0));
    if (found) entries.push_back({child.name, found.value().number, S_IFDIR});
    if (!found && found.error().errno_value() != ENOENT) return found.error();
  }
  return entries;
}

}  // namespace ckptfs::fs::views
