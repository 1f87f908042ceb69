#include "fs/views/views.h"

#include <algorithm>
#include <span>
#include <thread>

#include "fs/views/files_of_step.h"
#include "io/log.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/same_run.h"
#include "meta/names.h"
#include "meta/save_plan.h"
#include "meta/steps.h"
#include "meta/tensor_maps.h"

namespace ckptfs::fs::views {
namespace {

using meta::Attributes;
using meta::InodeRecord;
using meta::formats::TensorMap;

constexpr uint64_t kBlock = 4096;  // st_blksize
constexpr uint64_t kSector = 512;  // unit of st_blocks

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

// Do names lie in this folder, beside swap files of that run? As far as a look at one rank's tells.
bool tells_names(const meta::Tree& tree, InodeNumber folder, const FilesOfStep::Runs::value_type& run) {
  const auto entries = tree.list(folder);
  const bool states = entries && std::any_of(entries.value().begin(), entries.value().end(),
                                             [](const auto& entry) { return entry.name.ends_with("model_states.pt"); });
  const auto swapped = states ? tree.child(folder, meta::kTensorsName) : Error(ENOENT);
  const auto rank = swapped ? tree.child(swapped.value(), run.first) : swapped.error();
  const auto record = rank ? tree.inode(rank.value()) : rank.error();
  return record && record.value().newest_writer == run.second.process;
}

// Or in one of its folders, as in a step of a Trainer's.
bool may_tell_names(const meta::Tree& tree, InodeNumber step, const FilesOfStep::Runs::value_type& run) {
  if (tells_names(tree, step, run)) return true;
  const auto entries = tree.list(step);
  return entries && std::any_of(entries.value().begin(), entries.value().end(), [&](const auto& entry) {
           return entry.type == S_IFDIR && meta::step_number(entry.name) && tells_names(tree, entry.inode, run);
         });
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
    const meta::formats::Problem& problem = problems[at];
    const std::string where = problem.file.empty() ? "" : problem.file + ": ";
    log::warn("the view of {}: {}", step, on_one_line(where + problem.reason));
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

// The view, where it is known to be that of the step's files: at `asked`, or shortly before.
std::shared_ptr<const StepView> Views::cached(InodeNumber step, Look look, Clock::time_point asked) {
  const std::lock_guard lock(mutex_);
  const auto found = cache_.find(step);
  if (found == cache_.end()) return nullptr;
  found->second.used = asked;
  const auto oldest = look == Look::believing ? asked - kBelieved : asked;
  const bool current = look != Look::patient && found->second.checked > oldest;
  return found->second.view->sealed || current ? found->second.view : nullptr;
}

std::shared_ptr<std::mutex> Views::turn_for(InodeNumber step) {
  const std::lock_guard lock(mutex_);
  std::erase_if(turns_, [](const auto& turn) { return turn.second.expired(); });
  auto turn = turns_[step].lock();
  if (!turn) turns_[step] = turn = std::make_shared<std::mutex>();
  return turn;
}

void Views::keep(InodeNumber step, Cached made) {
  const std::lock_guard lock(mutex_);
  cache_[step] = std::move(made);
  const auto too_much = [this] {
    size_t memory = 0;
    for (const auto& [of, cached] : cache_) memory += cached.view->view.memory();
    return cache_.size() > kMostCached || (cache_.size() > 1 && memory > kMostMemory);
  };
  while (too_much()) {
    cache_.erase(std::min_element(cache_.begin(), cache_.end(),
                                  [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
}

Result<std::shared_ptr<const StepView>> Views::of_step(InodeNumber step, Look look) {
  const auto started = Clock::now();
  if (auto view = cached(step, look, started)) return view;
  // One makes it, and the others who ask wait for that one.
  const auto turn = turn_for(step);
  const std::lock_guard making(*turn);
  if (auto view = cached(step, look, started)) return view;
  TRY_ASSIGN(const Attributes folder, tree_.attributes(step));
  std::optional<FilesOfStep> collected;
  TRY_ASSIGN(const auto now, collect(step, look, collected));
  const FilesOfStep& files = *collected;
  if (auto known = as_it_was(step, files, now)) return known;
  TRY_ASSIGN(TensorMap map, map_of(step, files));
  map.problems.insert(map.problems.end(), files.problems().begin(), files.problems().end());
  if (!was_made(step, files)) log_problems(tree_.path_of(step), map.problems);
  const bool nameless = map.parameters.empty() && !map.undivided.empty();
  Source source;
  source.files = files.list();
  source.access = files.access();
  source.digests = files.digests();
  source.folder = {folder.stat.st_uid, folder.stat.st_gid, folder.stat.st_mode & 0555};
  const std::string version = files.fingerprint() + map.names_from;
  const io::Digest digest = io::digest_of(std::as_bytes(std::span(version)));
  source.version.assign(reinterpret_cast<const char*>(digest.data()), digest.size());
  source.map = std::move(map);
  const bool sealed = (folder.record.flags & meta::kSealed) != 0 && !nameless;
  const auto view =
      std::make_shared<const StepView>(step, std::move(source), files.made(), files.time(), sealed, nameless);
  keep(step, {view, files.fingerprint(), now, now, now});
  return view;
}

// The time of the look: what changes later has to be looked for again.
Result<Views::Clock::time_point> Views::collect(InodeNumber step, Look look, std::optional<FilesOfStep>& files) const {
  for (const auto end = Clock::now() + kClosing;; std::this_thread::sleep_for(kClosingLook)) {
    const auto now = Clock::now();
    TRY(files.emplace(store_, is_written_).collect(step));
    if (look != Look::patient || files->problems().empty() || now >= end) return now;
  }
}

// The view that was made of just these files. One without names is made anew from time to time: there may be some now.
std::shared_ptr<const StepView> Views::as_it_was(InodeNumber step, const FilesOfStep& files, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto known = cache_.find(step);
  if (known == cache_.end() || known->second.fingerprint != files.fingerprint()) return nullptr;
  if (known->second.view->nameless && now - known->second.made > kNameless) return nullptr;
  known->second.checked = now;
  return known->second.view;
}

// Of just these files, in vain perhaps: what is wrong with them has been told.
bool Views::was_made(InodeNumber step, const FilesOfStep& files) {
  const std::lock_guard lock(mutex_);
  const auto known = cache_.find(step);
  return known != cache_.end() && known->second.fingerprint == files.fingerprint();
}

// As it was kept, or read from the files, with the names of another step where it has none of its own.
Result<TensorMap> Views::map_of(InodeNumber step, const FilesOfStep& files) {
  const io::Digest version = files.version();
  auto kept = meta::kept_map(store_, step, version, files.list().size());
  if (kept && kept.value()) return *std::move(kept).value();
  if (!kept) log::warn("the view of {} is made anew: {}", tree_.path_of(step), kept.error().message());
  TensorMap map = meta::formats::read_checkpoint(files);
  if (map.parameters.empty() && !map.undivided.empty()) {
    auto named = with_names(step, files, map);
    if (named) {
      map = std::move(named).value();
    } else {
      log::warn("the view of {} is without names: {}", tree_.path_of(step), named.error().message());
    }
  }
  if (files.short_of()) return *files.short_of();  // the next one who asks may have better luck
  // What is being written will soon be another map, and what has no names may get some.
  if (!files.problems().empty() || map.parameters.empty()) return map;
  if (const auto done = meta::keep_map(store_, step, version, map); !done) {
    log::warn("the tensor map of {} is not kept: {}", tree_.path_of(step), done.error().message());
  }
  return map;
}

// The names that any step of the same run has, if that can be read as a whole.
Result<TensorMap> Views::with_names(InodeNumber step, const FilesOfStep& files, TensorMap map) {
  if (!files.has_run()) return map;
  TRY_ASSIGN(const auto all, meta::list_series(tree_));
  for (const InodeNumber series : all) {
    TRY_ASSIGN(const auto children, tree_.list(series));
    for (const meta::DirectoryEntry& child : children) {
      if (child.type != S_IFDIR || child.inode == step) continue;
      if (!may_tell_names(tree_, child.inode, *files.runs().begin())) continue;
      FilesOfStep others(store_, is_written_);
      // It may be going away this moment: then it tells no names.
      if (!others.collect(child.inode) || others.runs() != files.runs() || !others.problems().empty()) continue;
      const TensorMap named = meta::formats::read_checkpoint(others);
      if (others.short_of()) return *others.short_of();
      if (!named.problems.empty()) continue;
      map = meta::formats::named_like(std::move(map), files, named, others);
      if (map.parameters.empty()) continue;
      map.names_from = tree_.path_of(child.inode);
      return map;
    }
  }
  return map;
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
  // What is not there may have been made since.
  for (const Look look : {Look::believing, Look::patient}) {
    TRY_ASSIGN(auto view, of_step(real, look));
    const View::Node* const node = view->view.node(node_of(directory));
    if (node == nullptr) return Error(ESTALE);
    const auto child = node->children.find(name);
    if (child != node->children.end()) return in_view(std::move(view), child->second);
  }
  return Error(ENOENT);
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

void Views::opened(InodeNumber number, std::weak_ptr<const StepView> view) {
  const std::lock_guard lock(mutex_);
  if (opened_.size() >= kMostOpened) std::erase_if(opened_, [](const auto& one) { return one.second.expired(); });
  opened_[number] = std::move(view);
}

Result<std::vector<meta::DirectoryEntry>> Views::list(InodeNumber directory) {
  const InodeNumber real = real_of(directory);
  TRY_ASSIGN(const InodeRecord record, tree_.inode(real));
  TRY_ASSIGN(const bool step, is_step_of_series(real, record));
  std::vector<meta::DirectoryEntry> entries;
  if (step || node_of(directory) != 0) {
    TRY_ASSIGN(const auto view, of_step(real, node_of(directory) == 0 ? Look::patient : Look::believing));
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
