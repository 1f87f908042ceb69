#include "meta/steps/save_step.h"

#include "meta/names.h"
#include "meta/steps/steps.h"
#include "meta/time.h"

namespace ckptfs::meta {

Result<> SaveStep::inspect() {
  TRY_ASSIGN(const InodeRecord series, tree_.inode(request_.series));
  if (!series.is_dir()) return Error(ENOTDIR);
  if (!may_access(who_, series, kWrite | kSearch)) {
    return Error(EACCES, tree_.path_of(request_.series) + ": permission denied; a save makes a folder there");
  }
  TRY_ASSIGN(const auto entry, store_.index().find_entry(request_.series, request_.tag));
  if (!entry) return success();
  result_.step = entry->inode;
  TRY_ASSIGN(const InodeRecord step, tree_.inode(result_.step));
  if (!step.is_dir()) return Error(EEXIST, path() + ": it exists and is no directory; choose another tag");
  if ((step.flags & kSealed) != 0) return Error(EPERM, path() + ": the step is sealed; choose another tag");
  if (!may_access(who_, step, kWrite | kSearch)) {
    return Error(EACCES, path() + ": permission denied; the step is another user's, choose another tag");
  }
  TRY_ASSIGN(holds_swap_state_, step_holds_swap_state());
  return success();
}

Result<bool> SaveStep::step_holds_swap_state() const {
  for (const char* group : {kTensorsName, kParamsName}) {
    TRY_ASSIGN(const auto folder, store_.index().find_entry(result_.step, group));
    if (folder) return true;
  }
  return false;
}

Error SaveStep::exists() const {
  return Error(EEXIST, path() +
                           ": the step holds swap state already, and it is not what a save would take now; "
                           "choose another tag");
}

Result<> SaveStep::compare_with(InodeNumber source, const std::vector<SaveFile>& files) const {
  const auto record = store_.index().step(result_.step);
  if (!record || record.value().source != source) return exists();
  size_t present = 0;
  for (const char* group : {kTensorsName, kParamsName}) {
    TRY_ASSIGN(const auto folder, store_.index().find_entry(result_.step, group));
    if (!folder) continue;
    TRY(for_each_file(tree_, folder->inode, [&present](const auto&, InodeNumber) -> Result<> {
      ++present;
      return success();
    }));
  }
  if (present != files.size()) return exists();
  for (const SaveFile& taken : files) {
    const auto saved = tree_.resolve(path() + "/" + taken.plan.group + "/" + taken.plan.folder + "/" + taken.plan.name);
    if (!saved || taken.blob == 0) return exists();
    TRY_ASSIGN(const InodeRecord record_there, tree_.inode(saved.value()));
    if (record_there.blob != taken.blob) return exists();
  }
  return success();
}

Result<> SaveStep::publish(InodeNumber source, const std::vector<SaveFile>& files) {
  Tree::Change change = tree_.begin();
  TRY(put_step(change, source, files));
  for (const SaveFile& taken : files) {
    TRY_ASSIGN(const InodeNumber folder, folder_for(change, taken.plan));
    TRY(put_file(change, folder, taken));
  }
  for (const auto& [number, record] : new_folders_) change.batch.put(number, record);
  // The time is not before that of any folder of the step, since it tells whether a folder changed after the save.
  step_record_.saved = now();
  change.batch.put_step(result_.step, step_record_);
  return tree_.commit(std::move(change));
}

InodeRecord SaveStep::new_folder(InodeNumber parent) const {
  return new_directory(request_.caller.uid, request_.caller.gid, parent);
}

Result<> SaveStep::put_step(Tree::Change& change, InodeNumber source, const std::vector<SaveFile>& files) {
  const InodeNumber series_number = request_.series;
  TRY_ASSIGN(const auto known, none_if_gone(tree_.inode(series_number)));
  if (!known || known->nlink == 0) {
    return Error(ENOENT, "the series was removed while " + request_.tag + " was saved to it");
  }
  InodeRecord series = *known;
  series.flags |= kSeries;
  TRY_ASSIGN(const auto entry, store_.index().find_entry(series_number, request_.tag));
  if (entry.has_value() != (result_.step != 0) || (entry && entry->inode != result_.step)) {
    return Error(EEXIST, path() + ": somebody else made or removed it meanwhile; save again");
  }
  InodeRecord step;
  if (result_.step == 0) {
    result_.step = change.allot_inode();
    step = new_folder(series_number);
    step.flags = kStep;
    step.name = request_.tag;
    change.add_child(series_number, series, request_.tag, result_.step, step);
  } else {
    TRY_ASSIGN(step, tree_.inode(result_.step));
    if ((step.flags & kSealed) != 0) return Error(EPERM, path() + ": the step was sealed meanwhile");
    TRY_ASSIGN(const bool swap_state_came, step_holds_swap_state());
    if (swap_state_came) return exists();
    step.flags |= kStep;
  }
  change.batch.put(series_number, series);
  new_folders_.emplace(result_.step, step);
  TRY_ASSIGN(step_record_, step_record(store_, series_number, result_.step, request_.tag));
  step_record_.source = source;
  step_record_.stale = stale_names(files);
  return success();
}

std::string SaveStep::stale_names(const std::vector<SaveFile>& files) {
  constexpr size_t kShownNames = 20;
  std::string lines;
  std::string shown;
  size_t count = 0;
  for (const SaveFile& taken : files) {
    if (nanoseconds(taken.mtime) >= taken.plan.newest_writer) continue;
    const std::string name = taken.plan.group + "/" + taken.plan.folder + "/" + taken.plan.name;
    lines += name + "\n";
    if (++count <= kShownNames) shown += (shown.empty() ? "" : ", ") + name;
  }
  if (count > 0) {
    if (count > kShownNames) shown += " and " + std::to_string(count - kShownNames) + " more (ckptfs ls names them)";
    result_.warnings.push_back(
        std::to_string(count) +
        " perhaps stale (not written since the newest writer process of their folder began): " + shown);
  }
  return lines;
}

// Returns the folder step/group/rankRR. Makes it and step/group if they are missing.
Result<InodeNumber> SaveStep::folder_for(Tree::Change& change, const PlannedFile& plan) {
  InodeNumber parent = result_.step;
  std::string key;
  for (const std::string& name : {plan.group, plan.folder}) {
    key += "/" + name;
    auto [at, fresh] = folders_.try_emplace(key, 0);
    if (fresh) {
      at->second = change.allot_inode();
      InodeRecord record = new_folder(parent);
      record.name = name;
      if (name == plan.folder) record.newest_writer = plan.newest_writer;
      change.add_child(parent, new_folders_.at(parent), name, at->second, record);
      new_folders_.emplace(at->second, record);
    }
    parent = at->second;
  }
  return parent;
}

Result<> SaveStep::put_file(Tree::Change& change, InodeNumber folder, const SaveFile& taken) {
  InodeRecord record = taken.plan.record;  // as it was behind the gate
  record.nlink = 1;
  record.flags = kFrozen;
  record.parent = folder;
  record.name = taken.plan.name;
  record.blob = taken.blob;
  record.saved_blob = 0;
  record.cow_reserve = 0;
  record.size = static_cast<uint64_t>(taken.stat.st_size);
  record.blocks = static_cast<uint64_t>(taken.stat.st_blocks);
  record.atime = record.mtime = taken.mtime;
  record.ctime = now();
  change.add_child(folder, new_folders_.at(folder), taken.plan.name, change.allot_inode(), record);

  TRY_ASSIGN(BlobRecord blob, unless_gone(change.batch.blob(taken.blob)));
  if (blob.state == BlobState::tentative) {
    blob = {.state = BlobState::frozen, .references = 0, .length = record.size};
  } else if (blob.state != BlobState::frozen) {
    return step_before_gone();
  }
  ++blob.references;
  change.batch.put_blob(taken.blob, blob);
  ++result_.files;
  result_.cloned += taken.cloned ? 1 : 0;
  result_.bytes += record.size;
  return success();
}

Error SaveStep::step_before_gone() const {
  return Error(EAGAIN, path() + ": a step it shares with was removed meanwhile; save again");
}

}  // namespace ckptfs::meta
