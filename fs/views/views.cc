#include "fs/views/views.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "fs/views/files_of_step.h"
#include "io/fault.h"
#include "io/log.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/file_kinds.h"
#include "meta/formats/same_run.h"
#include "meta/names.h"
#include "meta/steps/steps.h"
#include "meta/steps/tensor_maps.h"

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
  // The blocks of a stored file of this size: with 0 tar would take the file for one hole.
  st.st_blocks = static_cast<blkcnt_t>((size + kSector - 1) / kSector);
  st.st_blksize = kBlock;
  st.st_atim = st.st_mtim = st.st_ctim = time;
  return st;
}

// Does this folder hold names, beside swap files of that run? The folder of one rank tells.
bool tells_names(const meta::Tree& tree, InodeNumber folder, const FilesOfStep::Runs::value_type& run) {
  const auto entries = tree.list(folder);
  const bool states = entries && std::any_of(entries.value().begin(), entries.value().end(), [](const auto& entry) {
                        return meta::formats::kind_of(entry.name).role == meta::formats::FileRole::model_states;
                      });
  const auto swapped = states ? tree.child(folder, meta::kTensorsName) : Error(ENOENT);
  const auto rank = swapped ? tree.child(swapped.value(), run.first) : swapped.error();
  const auto record = rank ? tree.inode(rank.value()) : rank.error();
  return record && record.value().newest_writer == run.second.process;
}

// Likewise, for the step or for one of its folders, since a Trainer's step contains DeepSpeed's.
bool may_tell_names(const meta::Tree& tree, InodeNumber step, const FilesOfStep::Runs::value_type& run) {
  if (tells_names(tree, step, run)) return true;
  const auto entries = tree.list(step);
  return entries && std::any_of(entries.value().begin(), entries.value().end(), [&](const auto& entry) {
           return entry.type == S_IFDIR && meta::step_number(entry.name) && tells_names(tree, entry.inode, run);
         });
}

// Names and reasons come from the step. Whatever is in them, each makes one line of the log.
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
  const io::MutexLock lock(mutex_);
  std::weak_ptr<const Content>& known = contents_[number];
  if (auto content = known.lock()) return content;
  auto content = std::make_shared<const Content>(view.content(*view.node(number)));
  known = content;
  return content;
}

Result<StepView::Hold> StepView::hold(UserBudget& memory, uint32_t user, uint64_t content) const {
  const io::MutexLock lock(mutex_);
  Hold hold{claim_.lock(), {}};
  TRY_ASSIGN(auto taken, memory.take(user, hold.view ? content : content + view.memory()));
  if (hold.view) {
    hold.content = std::move(taken);
  } else {
    hold.view = std::make_shared<const UserBudget::Claim>(std::move(taken));
    claim_ = hold.view;
  }
  return hold;
}

// Returns the cached view of a sealed step, and that of a live step if it was checked against the step's files after
// `asked`, or with Freshness::recent shortly before. Null: there is none.
std::shared_ptr<const StepView> Views::cached(InodeNumber step, Freshness freshness, Clock::time_point asked) {
  const io::MutexLock lock(mutex_);
  const auto found = cache_.find(step);
  if (found == cache_.end()) return nullptr;
  found->second.used = asked;
  const auto oldest = freshness == Freshness::recent ? asked - kRecent : asked;
  const bool current = found->second.checked > oldest;
  return found->second.view->sealed || current ? found->second.view : nullptr;
}

uint64_t Views::forgets() const {
  const io::MutexLock lock(mutex_);
  return forgets_;
}

void Views::forget(InodeNumber step) {
  const io::MutexLock lock(mutex_);
  cache_.erase(step);
  ++forgets_;
}

Result<bool> Views::is_current(const StepView& view) const {
  FilesOfStep files(store_, ask_writers_, stop_);
  TRY(files.collect(view.step));
  return files.problems().empty() && files.fingerprint() == view.fingerprint;
}

void Views::keep(InodeNumber step, Cached made, uint64_t counted) {
  const io::MutexLock lock(mutex_);
  if (counted != forgets_) return;
  cache_[step] = std::move(made);
  const auto too_much = [this]() REQUIRES(mutex_) {
    size_t memory = 0;
    for (const auto& [of, cached] : cache_) memory += cached.view->view.memory();
    return cache_.size() > kMostCached || (cache_.size() > 1 && memory > kMostMemory);
  };
  while (too_much()) {
    cache_.erase(std::min_element(cache_.begin(), cache_.end(),
                                  [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
}

void Views::with_view(InodeNumber step, Freshness freshness, uint32_t user, std::function<void(const MadeView&)> done) {
  if (auto view = cached(step, freshness, Clock::now())) return done(view);
  {
    const io::MutexLock lock(mutex_);
    Making& making = making_[step];
    making.waiting.push_back({user, std::move(done)});
    if (making.running) return;  // the thread that makes the view calls a lane for those who wait, afterwards
  }
  call_lane(step, user);
}

// Calls a lane of this user, since another user's lane may have a lot to do. The first lane that comes serves all who
// wait.
void Views::call_lane(InodeNumber step, uint32_t user) {
  const auto called = lanes_.start(user, [this, step] { serve(step); });
  if (called) return;
  std::vector<Waiting> refused;
  {
    const io::MutexLock lock(mutex_);
    const auto making = making_.find(step);
    if (making == making_.end()) return;
    auto& waiting = making->second.waiting;
    const auto stay =
        std::stable_partition(waiting.begin(), waiting.end(), [&](const auto& one) { return one.user != user; });
    refused.assign(std::make_move_iterator(stay), std::make_move_iterator(waiting.end()));
    waiting.erase(stay, waiting.end());
    if (waiting.empty() && !making->second.running) making_.erase(making);
  }
  for (const Waiting& one : refused) one.done(called.error());
}

void Views::serve(InodeNumber step) {
  std::vector<Waiting> served;
  {
    const io::MutexLock lock(mutex_);
    const auto making = making_.find(step);
    if (making == making_.end() || making->second.running) return;
    making->second.running = true;
    served = std::exchange(making->second.waiting, {});
  }
  const MadeView made = make(step);
  std::set<uint32_t> users;  // those who asked meanwhile
  {
    const io::MutexLock lock(mutex_);
    const auto making = making_.find(step);
    making->second.running = false;
    for (const Waiting& one : making->second.waiting) users.insert(one.user);
    if (users.empty()) making_.erase(making);
  }
  for (const uint32_t user : users) call_lane(step, user);
  for (const Waiting& one : served) one.done(made);
}

Views::MadeView Views::make(InodeNumber step) {
  TRY(io::fault_point("views.make"));
  const uint64_t forgets_before = forgets();
  TRY_ASSIGN(const Attributes folder, tree_.attributes(step));
  std::optional<FilesOfStep> collected;
  TRY_ASSIGN(const auto now, collect(step, collected));
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
  const io::Digest digest = files.version(map.names_from);
  source.version.assign(reinterpret_cast<const char*>(digest.data()), digest.size());
  source.map = std::move(map);
  const bool sealed = (folder.record.flags & meta::kSealed) != 0 && !nameless;
  const auto view = std::make_shared<const StepView>(step, std::move(source), files, sealed, nameless);
  keep(step, {view, now, now, now}, forgets_before);
  return view;
}

// Returns when the files were inspected. Later changes do not show in `files`.
Result<Views::Clock::time_point> Views::collect(InodeNumber step, std::optional<FilesOfStep>& files) const {
  for (const auto end = Clock::now() + kMostClosing;; std::this_thread::sleep_for(kClosingPoll)) {
    const auto now = Clock::now();
    TRY(files.emplace(store_, ask_writers_, stop_).collect(step));
    if (!files->is_closing() || now >= end) return now;
  }
}

// The view that was made of exactly these files. Null: there is none, or it lacks names and is to be made anew, since
// another step may have names by now.
std::shared_ptr<const StepView> Views::as_it_was(InodeNumber step, const FilesOfStep& files, Clock::time_point now) {
  const io::MutexLock lock(mutex_);
  const auto known = cache_.find(step);
  if (known == cache_.end() || known->second.view->fingerprint != files.fingerprint()) return nullptr;
  if (known->second.view->nameless && now - known->second.made > kNameless) return nullptr;
  known->second.checked = now;
  return known->second.view;
}

// Was a view made of exactly these files? Then their problems are in the log already.
bool Views::was_made(InodeNumber step, const FilesOfStep& files) {
  const io::MutexLock lock(mutex_);
  const auto known = cache_.find(step);
  return known != cache_.end() && known->second.view->fingerprint == files.fingerprint();
}

// Returns the map that was kept in the index, or reads it from the files. A map without names gets those of another
// step.
Result<TensorMap> Views::map_of(InodeNumber step, const FilesOfStep& files) {
  const io::Digest version = files.version();
  auto kept = meta::kept_map(store_, step, version, files.list().size());
  if (kept && kept.value()) return *std::move(kept).value();
  if (!kept) log::warn("the view of {} is made anew: {}", tree_.path_of(step), kept.error().message());
  const std::lock_guard turn(readings_);
  TensorMap map = meta::formats::read_checkpoint(files);
  if (map.parameters.empty() && !map.undivided.empty()) {
    auto named = with_names(step, files, map);
    if (named) {
      map = std::move(named).value();
    } else {
      log::warn("the view of {} is without names: {}", tree_.path_of(step), named.error().message());
    }
  }
  if (files.short_of()) return *files.short_of();  // the next request may have better luck
  // Do not keep the map if a file is being written, since the map will soon be another one, nor if it has no names,
  // since it may get some.
  if (!files.problems().empty() || map.parameters.empty()) return map;
  if (const auto done = meta::keep_map(store_, step, version, map); !done) {
    log::warn("the tensor map of {} is not kept: {}", tree_.path_of(step), done.error().message());
  }
  return map;
}

// Adds the names of any step of the same run that can be read as a whole.
Result<TensorMap> Views::with_names(InodeNumber step, const FilesOfStep& files, TensorMap map) {
  if (!files.has_run()) return map;
  TRY_ASSIGN(const auto all, meta::list_series(tree_));
  for (const InodeNumber series : all) {
    TRY_ASSIGN(const auto children, tree_.list(series));
    for (const meta::DirectoryEntry& child : children) {
      if (child.type != S_IFDIR || child.inode == step) continue;
      if (!may_tell_names(tree_, child.inode, *files.runs().begin())) continue;
      FilesOfStep others(store_, ask_writers_, stop_);
      // The step may be removed this moment. Then it tells no names.
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

Result<Views::ViewNode> Views::real_directory(InodeNumber real) {
  TRY_ASSIGN(const Attributes attributes, tree_.attributes(real));
  if (!attributes.record.is_dir() || attributes.record.nlink == 0) return Error(ENOENT);
  const struct stat& st = attributes.stat;
  const InodeNumber number = number_of(real, 0);
  return ViewNode{number, nullptr, 0,
                  stat_of(number, S_IFDIR, {st.st_uid, st.st_gid, st.st_mode & 0555}, 0, st.st_mtim)};
}

Result<Views::ViewNode> Views::in_view(std::shared_ptr<const StepView> view, NodeNumber number) const {
  const View::Node* const node = view->view.node(number);
  if (node == nullptr) return Error(ENOENT);
  const InodeNumber inode = number_of(view->step, number);
  const struct stat st = stat_of(inode, View::type_of(*node), node->access, node->size, view->time);
  return ViewNode{inode, std::move(view), number, st};
}

Result<Views::ViewNode> Views::child_in(std::shared_ptr<const StepView> view, NodeNumber directory,
                                        const std::string& name) const {
  const View::Node* const node = view->view.node(directory);
  if (node == nullptr) return Error(ESTALE);
  const auto child = node->children.find(name);
  if (child == node->children.end()) return Error(ENOENT);
  return in_view(std::move(view), child->second);
}

// Also finds a node of an earlier version, or of a step that is gone, if somebody has it open.
Result<Views::ViewNode> Views::node_in(const MadeView& view, InodeNumber number) {
  if (view && view.value()->view.node(node_of(number)) != nullptr) return in_view(view.value(), node_of(number));
  std::shared_ptr<const StepView> open;
  {
    const io::MutexLock lock(mutex_);
    const auto known = opened_.find(number);
    if (known != opened_.end()) open = known->second.lock();
  }
  if (open) return in_view(std::move(open), node_of(number));
  return Error(view ? ESTALE : view.error().errno_value());
}

// The directories that lead to steps: each series, and all folders above a series.
Result<std::unordered_set<InodeNumber>> Views::leading_to_steps() const {
  std::unordered_set<InodeNumber> leading{meta::kRootInode};
  TRY_ASSIGN(const auto all, meta::list_series(tree_));
  for (InodeNumber at : all) {
    while (leading.insert(at).second) {
      TRY_ASSIGN(const auto record, none_if_gone(tree_.inode(at)));
      if (!record) break;  // it was removed this moment
      at = record->parent;
    }
  }
  return leading;
}

// A step that is being removed has no view.
Result<std::optional<bool>> Views::is_step_by_record(InodeNumber real, const InodeRecord& record) const {
  const std::optional<bool> no = false;
  if (real == meta::kRootInode || !record.is_dir() || record.parent == 0) return no;
  TRY_ASSIGN(const InodeRecord above, tree_.inode(record.parent));
  if ((above.flags & meta::kSeries) == 0) return no;
  if ((record.flags & meta::kStep) == 0) return std::optional<bool>();
  TRY_ASSIGN(const meta::StepRecord known, store_.index().step(real));
  return std::optional(!known.being_removed);
}

Result<bool> Views::is_step_of_series(InodeNumber real, const InodeRecord& record) const {
  TRY_ASSIGN(const auto known, is_step_by_record(real, record));
  return known ? Result<bool>(*known) : meta::is_step(tree_, real);
}

void Views::with_kind(InodeNumber directory, uint32_t user, const Answer<bool>& then) {
  const InodeNumber real = real_of(directory);
  const auto record = tree_.inode(real);
  const auto known = record ? is_step_by_record(real, record.value()) : record.error();
  if (!known) return then(known.error());
  if (node_of(directory) != 0) return then(true);
  if (known.value()) return then(*known.value());
  const auto started = lanes_.start(user, [this, real, then] { then(meta::is_step(tree_, real)); });
  if (!started) then(started.error());
}

void Views::lookup(InodeNumber directory, const std::string& name, uint32_t user, const Answer<ViewNode>& answer) {
  with_kind(directory, user, [this, directory, name, user, answer](const Result<bool>& step) {
    return step ? lookup_in(directory, step.value(), name, user, answer) : answer(step.error());
  });
}

void Views::lookup_in(InodeNumber directory, bool in_step, const std::string& name, uint32_t user,
                      const Answer<ViewNode>& answer) {
  const InodeNumber real = real_of(directory);
  if (!in_step) {
    const auto child = tree_.child(real, name);
    return child ? find(number_of(child.value(), 0), user, answer) : answer(child.error());
  }
  const auto child_of = [this, node = node_of(directory), name](const MadeView& view) -> Result<ViewNode> {
    return view ? child_in(view.value(), node, name) : Result<ViewNode>(view.error());
  };
  with_view(real, Freshness::recent, user, [this, real, user, answer, child_of](const MadeView& view) {
    auto found = child_of(view);
    if (found || !view || found.error().errno_value() != ENOENT) return answer(std::move(found));
    // The file may have been made since the view was checked.
    with_view(real, Freshness::now, user, [answer, child_of](const MadeView& fresh) { answer(child_of(fresh)); });
  });
}

void Views::find(InodeNumber number, uint32_t user, const Answer<ViewNode>& answer) {
  if (node_of(number) == 0) return find_directory(real_of(number), user, answer);
  with_view(real_of(number), Freshness::recent, user,
            [this, number, answer](const MadeView& view) { answer(node_in(view, number)); });
}

void Views::find_now(InodeNumber number, uint32_t user, const Answer<ViewNode>& answer) {
  if (node_of(number) == 0) return find_directory(real_of(number), user, answer);
  with_view(real_of(number), Freshness::now, user, [this, number, answer](const MadeView& view) {
    if (!view) return answer(view.error());
    if (view.value()->view.node(node_of(number)) == nullptr) return answer(Error(ESTALE));
    answer(in_view(view.value(), node_of(number)));
  });
}

void Views::find_directory(InodeNumber real, uint32_t user, const Answer<ViewNode>& answer) {
  if (real == meta::kRootInode) return answer(real_directory(real));
  const auto record = tree_.inode(real);
  if (!record) return answer(record.error());
  if (!record.value().is_dir() || record.value().nlink == 0 || !has_number(real)) return answer(Error(ENOENT));
  if ((record.value().flags & meta::kSeries) != 0) return answer(real_directory(real));
  const auto known = is_step_by_record(real, record.value());
  if (!known) return answer(known.error());
  if (known.value() == true) return answer(real_directory(real));
  const auto inspect = [this, real, record = record.value(), answer] {
    const auto step = is_step_of_series(real, record);
    const auto leading = step && !step.value() ? leading_to_steps() : std::unordered_set<InodeNumber>();
    if (!step || !leading) return answer(step ? leading.error() : step.error());
    const bool shown = step.value() || leading.value().contains(real);
    answer(shown ? real_directory(real) : Result<ViewNode>(Error(ENOENT)));
  };
  if (const auto started = lanes_.start(user, inspect); !started) answer(started.error());
}

void Views::opened(InodeNumber number, std::weak_ptr<const StepView> view) {
  const io::MutexLock lock(mutex_);
  if (opened_.size() >= kMostOpened) std::erase_if(opened_, [](const auto& one) { return one.second.expired(); });
  opened_[number] = std::move(view);
}

void Views::list(InodeNumber directory, uint32_t user, const Answer<std::vector<meta::DirectoryEntry>>& answer) {
  with_kind(directory, user, [this, directory, user, answer](const Result<bool>& step) {
    if (!step) return answer(step.error());
    const InodeNumber real = real_of(directory);
    if (!step.value()) {
      const auto started = lanes_.start(user, [this, real, answer] { answer(list_directory(real)); });
      return started ? void() : answer(started.error());
    }
    const Freshness freshness = node_of(directory) == 0 ? Freshness::now : Freshness::recent;
    with_view(real, freshness, user, [directory, answer](const MadeView& view) {
      if (!view) return answer(view.error());
      answer(entries_of(*view.value(), node_of(directory)));
    });
  });
}

Result<std::vector<meta::DirectoryEntry>> Views::entries_of(const StepView& view, NodeNumber directory) {
  const View::Node* const node = view.view.node(directory);
  if (node == nullptr) return Error(ESTALE);
  std::vector<meta::DirectoryEntry> entries;
  for (const auto& [name, child] : node->children) {
    entries.push_back({name, number_of(view.step, child), View::type_of(*view.view.node(child))});
  }
  return entries;
}

Result<std::vector<meta::DirectoryEntry>> Views::list_directory(InodeNumber real) {
  TRY_ASSIGN(const auto leading, leading_to_steps());
  TRY_ASSIGN(const auto children, tree_.list(real));
  std::vector<meta::DirectoryEntry> entries;
  for (const meta::DirectoryEntry& child : children) {
    if (!S_ISDIR(child.type) || !has_number(child.inode)) continue;
    const auto record = tree_.inode(child.inode);
    const auto step = record ? is_step_of_series(child.inode, record.value()) : record.error();
    if (!step && step.error().errno_value() == ENOENT) continue;  // it was removed this moment
    TRY(step);
    if (step.value() || leading.contains(child.inode))
      entries.push_back({child.name, number_of(child.inode, 0), S_IFDIR});
  }
  return entries;
}

}  // namespace ckptfs::fs::views
