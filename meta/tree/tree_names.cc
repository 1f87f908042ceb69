// Tree: names. Each function is one change: check, build the batch, commit.
#include <fcntl.h>
#include <linux/fs.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>

#include "io/fault.h"
#include "io/log.h"
#include "meta/names.h"
#include "meta/time.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {
namespace {

// One change labels a moved folder with all below it (relabel_swap), and everybody's changes wait for it. So many take
// a quarter of a second and 13 MiB. A larger folder is refused as if it moved to another file system, and mv copies it.
constexpr size_t kMostRelabelled = 16384;
constexpr const char* kUnpin = "unpin it first (ckptfs unpin)";

bool is_reserved(InodeNumber parent, const std::string& name) {
  return parent == kRootInode && (name == kStepsName || name == kViewsName);
}

Result<> check_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) return Error(EINVAL);
  if (name.size() > kMaximumName) return Error(ENAMETOOLONG);
  return success();
}

InodeRecord new_record(const NewNode& node, const InodeRecord& parent, InodeNumber parent_number,
                       const Caller& caller) {
  InodeRecord record;
  record.mode = node.mode;
  record.uid = caller.uid;
  record.gid = caller.gid;
  if ((parent.mode & S_ISGID) != 0) {
    record.gid = parent.gid;
    if (S_ISDIR(node.mode)) record.mode |= S_ISGID;
  }
  record.nlink = S_ISDIR(node.mode) ? 2 : 1;
  record.rdev = node.rdev;
  record.newest_writer = node.writer;
  record.target = node.target;
  record.size = node.target.size();
  record.parent = parent_number;
  record.atime = record.mtime = record.ctime = now();
  return record;
}

// Counts one directory less in `parent`, unless `parent` is out of the tree itself and so has no links.
void drop_folder_from(InodeRecord& parent) {
  if (parent.nlink != 0) --parent.nlink;
}

}  // namespace

InodeRecord new_directory(uint32_t uid, uint32_t gid, InodeNumber parent) {
  InodeRecord record;
  record.mode = S_IFDIR | 0755;
  record.uid = uid;
  record.gid = gid;
  record.nlink = 2;
  record.parent = parent;
  record.atime = record.mtime = record.ctime = now();
  return record;
}

Result<Attributes> Tree::make(InodeNumber parent_number, const std::string& name, const NewNode& node,
                              const Caller& caller) {
  TRY(check_name(name));
  if (parent_number == kRootInode && name == kViewsName) {
    return Error(EBUSY, "/views is reserved for the views of steps; choose another name");
  }
  const bool regular = S_ISREG(node.mode);
  BlobNumber blob = 0;
  if (regular) {
    blob = reserve_blob_number();
    TRY(blobs_.create(blob));
    index_.note_blobs_changed();  // before the file's name is in the index, so that a sync of the name syncs blobs/ too
    TRY(io::fault_point("create.after_blob"));
  }
  auto made = [&]() -> Result<Attributes> {
    Change change = begin();
    TRY_ASSIGN(InodeRecord parent, directory(parent_number));
    if (parent.nlink == 0) return Error(ENOENT);
    TRY(refuse_sealed(parent_number, parent, "making " + name));
    TRY_ASSIGN(const auto there, index_.find_entry(parent_number, name));
    if (there) return Error(EEXIST);
    InodeRecord record = new_record(node, parent, parent_number, caller);
    record.blob = blob;
    record.name = name;
    const bool swap = (parent.flags & kSwap) != 0 || (record.is_dir() && is_swap_folder_name(name));
    if (swap && (record.is_dir() || regular)) record.flags |= kSwap;
    if (regular && is_swap_file_name(name)) note_maker(parent, caller);
    const InodeNumber number = change.allot_inode();
    if (regular) {
      change.allot_blobs(0);
      change.batch.put_blob(blob, {});
    }
    change.add_child(parent_number, parent, name, number, record);
    change.batch.put(parent_number, parent);
    TRY(commit(std::move(change)));
    Attributes attributes;
    attributes.record = std::move(record);
    fill_stat(number, attributes);
    return attributes;
  }();
  if (made) entry_added_(parent_number, {name, made.value().stat.st_ino, node.mode & S_IFMT});
  if (!regular) return made;
  if (made) return attributes(made.value().stat.st_ino);
  if (const auto removed = blobs_.remove(blob); !removed) {
    log::warn("{}: a blob that was never named stays: {}", name, removed.error().message());
  }
  return made;
}

Result<Attributes> Tree::link(InodeNumber number, InodeNumber parent_number, const std::string& name) {
  TRY(check_name(name));
  {
    Change change = begin();
    TRY_ASSIGN(InodeRecord record, index_.inode(number));
    if (record.is_dir()) return Error(EPERM);
    if (record.nlink == 0) return Error(ENOENT);
    TRY(refuse_sealed(number, record, "linking"));
    TRY_ASSIGN(InodeRecord parent, directory(parent_number));
    if (parent.nlink == 0) return Error(ENOENT);
    TRY(refuse_sealed(parent_number, parent, "linking " + name));
    TRY_ASSIGN(const auto there, index_.find_entry(parent_number, name));
    if (there) return Error(EEXIST);
    ++record.nlink;
    record.ctime = now();
    change.add_child(parent_number, parent, name, number, record);
    change.batch.put(parent_number, parent);
    TRY(commit(std::move(change)));
  }
  entry_added_(parent_number, {name, number, S_IFREG});
  return attributes(number);
}

// Begins a removal inside a sealed step. `rm -r` cannot be told from `rm`, so with the first removal the step becomes
// "being removed", unless it is pinned. True: the change must be durable before the reply.
Result<bool> Tree::begin_removal(Change& change, InodeNumber parent_number, const InodeRecord& parent) {
  if ((parent.flags & kSealed) == 0) return false;
  bool begun = false;
  TRY_ASSIGN(InodeNumber step_number, step_of(parent_number));
  while (step_number != 0) {  // a Trainer's checkpoint-N holds a global_stepN
    TRY_ASSIGN(StepRecord step, index_.step(step_number));
    if (step.pinned) return Error(EPERM, path_of(step_number) + ": the step is pinned; " + kUnpin);
    if (step.sealed && !step.being_removed) {
      step.being_removed = true;
      change.batch.put_step(step_number, step);
      begun = true;
    }
    TRY_ASSIGN(const InodeRecord record, index_.inode(step_number));
    TRY_ASSIGN(step_number, step_of(record.parent));
  }
  return begun;
}

Result<Dropped> Tree::unlink(InodeNumber parent_number, const std::string& name) {
  bool durable = false;
  Dropped dropped;
  {
    Change change = begin();
    TRY_ASSIGN(const EntryRecord entry, index_.entry(parent_number, name));
    TRY_ASSIGN(InodeRecord record, index_.inode(entry.inode));
    if (record.is_dir()) return Error(EISDIR);
    TRY_ASSIGN(InodeRecord parent, directory(parent_number));
    TRY_ASSIGN(durable, begin_removal(change, parent_number, parent));
    change.batch.erase_entry(parent_number, name);
    parent.mtime = parent.ctime = now();
    change.batch.put(parent_number, parent);
    change.drop_name(entry.inode, record);
    dropped = {entry.inode, record.nlink == 0};
    TRY(commit(std::move(change)));
  }
  TRY(io::fault_point("unlink.after_batch"));
  if (durable) TRY(sync());
  return dropped;
}

Result<Dropped> Tree::remove_directory(InodeNumber parent_number, const std::string& name) {
  if (is_reserved(parent_number, name)) return Error(EBUSY, "/" + name + " cannot be removed");
  bool durable = false;
  Dropped dropped;
  {
    Change change = begin();
    TRY_ASSIGN(const EntryRecord entry, index_.entry(parent_number, name));
    TRY_ASSIGN(InodeRecord record, directory(entry.inode));
    TRY_ASSIGN(const bool full, index_.has_entries(entry.inode));
    if (full) return Error(ENOTEMPTY);
    TRY_ASSIGN(InodeRecord parent, directory(parent_number));
    TRY_ASSIGN(durable, begin_removal(change, parent_number, parent));
    if ((record.flags & kStep) != 0) TRY(begin_removal(change, entry.inode, record));
    change.batch.erase_entry(parent_number, name);
    parent.mtime = parent.ctime = now();
    drop_folder_from(parent);
    change.batch.put(parent_number, parent);
    change.drop_name(entry.inode, record);
    dropped = {entry.inode, true};
    TRY(commit(std::move(change)));
  }
  if (durable) TRY(sync());
  return dropped;
}

Result<bool> Tree::is_below(InodeNumber number, InodeNumber ancestor) const {
  while (number != 0) {
    if (number == ancestor) return true;
    if (number == kRootInode) return false;
    TRY_ASSIGN(const InodeRecord record, index_.inode(number));
    number = record.parent;
  }
  return false;
}

// Removes the target of a rename. A directory may replace an empty directory only, anything else anything but a
// directory.
Result<> Tree::replace_target(Change& change, const InodeRecord& moved, InodeNumber number, InodeRecord& target) {
  if (moved.is_dir() && !target.is_dir()) return Error(ENOTDIR);
  if (!moved.is_dir() && target.is_dir()) return Error(EISDIR);
  if (target.is_dir()) {
    TRY_ASSIGN(const bool full, index_.has_entries(number));
    if (full) return Error(ENOTEMPTY);
    if ((target.flags & kStep) != 0) TRY(begin_removal(change, number, target));
  }
  change.drop_name(number, target);
  return success();
}

// A file or folder that moves into a zero_stage_N folder becomes swap state, with all below it. One that moves out is
// no longer. EXDEV: too much lies below it.
Result<> Tree::relabel_swap(Change& change, InodeNumber number, InodeRecord& record, bool swap) {
  TRY_ASSIGN(const bool changed, relabel_one(change, number, record, swap));
  // A loop instead of recursion, since users may nest folders as deep as they like.
  std::vector<std::pair<InodeNumber, bool>> folders;
  if (changed && record.is_dir()) folders.emplace_back(number, swap);
  size_t left = kMostRelabelled;
  while (!folders.empty()) {
    const auto [folder, in_swap] = folders.back();
    folders.pop_back();
    TRY_ASSIGN(const auto children, index_.entries_after(folder, "", left + 1));
    if (children.size() > left) {
      return Error(EXDEV, path_of(number) + ": a rename takes at most " + std::to_string(kMostRelabelled) +
                              " files into or out of a zero_stage_N folder; copy it (mv does)");
    }
    left -= children.size();
    for (const DirectoryEntry& child : children) {
      TRY_ASSIGN(InodeRecord child_record, change.batch.inode(child.inode));
      const bool child_swap = in_swap || (child_record.is_dir() && is_swap_folder_name(child.name));
      TRY_ASSIGN(const bool child_changed, relabel_one(change, child.inode, child_record, child_swap));
      if (child_changed && child_record.is_dir()) folders.emplace_back(child.inode, child_swap);
    }
  }
  return success();
}

// False: nothing has to change.
Result<bool> Tree::relabel_one(Change& change, InodeNumber number, InodeRecord& record, bool swap) {
  if (((record.flags & kSwap) != 0) == swap || (!record.is_dir() && !record.is_regular())) return false;
  record.flags = swap ? record.flags | kSwap : record.flags & ~uint32_t{kSwap};
  record.saved_blob = 0;
  if (record.is_live_file()) {
    uint64_t cow_reserve = 0;
    if (swap) {
      TRY_ASSIGN(const struct stat blob, blobs_.stat(record.blob));
      cow_reserve = cow_reserve_of_clone(blob);
    }
    change.set_cow_reserve(record, cow_reserve);
  }
  change.batch.put(number, record);
  return true;
}

// See meta/blobs/write_back.h.
void Tree::note_replacing(InodeNumber old_number, const std::string& name, InodeNumber new_number,
                          const std::string& new_name) {
  const auto target = index_.find_entry(new_number, new_name);
  if (!target || !target.value()) return;
  const auto entry = index_.entry(old_number, name);
  const auto moved = entry ? index_.inode(entry.value().inode) : entry.error();
  if (moved && moved.value().is_live_file()) write_back_.note_replacing(entry.value().inode, moved.value().blob);
}

Result<std::optional<Dropped>> Tree::rename(InodeNumber old_number, const std::string& name, InodeNumber new_number,
                                            const std::string& new_name, unsigned flags) {
  if ((flags & ~unsigned{RENAME_NOREPLACE}) != 0) return Error(EINVAL);
  TRY(check_name(new_name));
  if (is_reserved(old_number, name) || is_reserved(new_number, new_name)) {
    return Error(EBUSY, "/steps and /views cannot be renamed or replaced");
  }
  note_replacing(old_number, name, new_number, new_name);
  Change change = begin();
  TRY_ASSIGN(const EntryRecord entry, index_.entry(old_number, name));
  TRY_ASSIGN(InodeRecord moved, index_.inode(entry.inode));
  TRY_ASSIGN(InodeRecord old_parent, directory(old_number));
  TRY_ASSIGN(InodeRecord new_parent, directory(new_number));
  if (new_parent.nlink == 0) return Error(ENOENT);
  TRY(refuse_sealed(old_number, old_parent, "renaming " + name));
  TRY(refuse_sealed(new_number, new_parent, "renaming to " + new_name));
  if (moved.is_dir()) {
    TRY_ASSIGN(const bool below, is_below(new_number, entry.inode));
    if (below) return Error(EINVAL);
  }
  const bool same_folder = old_number == new_number;
  InodeRecord& into = same_folder ? old_parent : new_parent;

  std::optional<Dropped> dropped;
  TRY_ASSIGN(const auto target_entry, index_.find_entry(new_number, new_name));
  if (target_entry) {
    if ((flags & RENAME_NOREPLACE) != 0) return Error(EEXIST);
    const InodeNumber target_number = target_entry->inode;
    if (target_number == entry.inode) return std::optional<Dropped>();
    TRY_ASSIGN(InodeRecord target, index_.inode(target_number));
    TRY(replace_target(change, moved, target_number, target));
    if (target.is_dir()) drop_folder_from(into);
    dropped = Dropped{target_number, target.nlink == 0};
  }

  const bool aside = same_folder && is_set_aside_name(new_name);
  change.note_event(aside ? StepEvent::What::set_aside : StepEvent::What::renamed, entry.inode, moved,
                    same_folder ? new_name : path_of(new_number) + "/" + new_name);
  const bool swap = (into.flags & kSwap) != 0 || (moved.is_dir() && is_swap_folder_name(new_name));
  TRY(relabel_swap(change, entry.inode, moved, swap));
  moved.parent = new_number;
  moved.name = new_name;
  moved.ctime = now();
  if (moved.is_dir() && !same_folder) {
    drop_folder_from(old_parent);
    ++new_parent.nlink;
  }
  change.batch.erase_entry(old_number, name);
  change.batch.put_entry(new_number, new_name, {entry.inode, entry.type});
  change.batch.put(entry.inode, moved);
  into.mtime = into.ctime = old_parent.mtime = old_parent.ctime = now();
  change.batch.put(old_number, old_parent);
  if (!same_folder) change.batch.put(new_number, new_parent);
  TRY(commit(std::move(change)));
  entry_added_(new_number, {new_name, entry.inode, entry.type});
  if (moved.is_dir()) directory_renamed_(entry.inode);
  return dropped;
}

Result<Tree::Moved> Tree::move_all(InodeNumber from_number, InodeNumber to_number) {
  Moved moved;
  {
    Change change = begin();
    TRY_ASSIGN(const auto entries, index_.entries(from_number));
    TRY_ASSIGN(InodeRecord from, directory(from_number));
    TRY_ASSIGN(InodeRecord to, directory(to_number));
    if (from.nlink == 0 || to.nlink == 0) return Error(ENOENT);
    TRY(refuse_sealed(from_number, from, "moving what it holds"));
    TRY(refuse_sealed(to_number, to, "moving to it"));
    std::unordered_map<InodeNumber, InodeRecord> records;  // as the change leaves them: a file may have several names
    const auto record_of = [&](InodeNumber number) -> Result<InodeRecord*> {
      if (!records.contains(number)) {
        TRY_ASSIGN(records[number], index_.inode(number));
      }
      return &records[number];
    };
    for (const DirectoryEntry& entry : entries) {
      TRY_ASSIGN(InodeRecord* const record, record_of(entry.inode));
      TRY_ASSIGN(const auto there, index_.find_entry(to_number, entry.name));
      if (there) {
        TRY_ASSIGN(InodeRecord* const target, record_of(there->inode));
        TRY(replace_target(change, *record, there->inode, *target));
        if (target->is_dir()) drop_folder_from(to);
        moved.replaced.push_back({there->inode, target->nlink == 0});
      }
      record->parent = to_number;
      record->name = entry.name;
      record->ctime = now();
      if (record->is_dir()) {
        drop_folder_from(from);
        ++to.nlink;
      }
      change.batch.erase_entry(from_number, entry.name);
      change.batch.put_entry(to_number, entry.name, {entry.inode, entry.type});
      moved.entries.push_back(entry);
    }
    for (const auto& [number, record] : records) change.batch.put(number, record);
    from.mtime = from.ctime = to.mtime = to.ctime = now();
    change.batch.put(from_number, from);
    change.batch.put(to_number, to);
    TRY(commit(std::move(change)));
  }
  for (const DirectoryEntry& entry : moved.entries) entry_added_(to_number, entry);
  return moved;
}

Result<> Tree::take_out(InodeNumber parent_number, const std::string& name, InodeNumber expected,
                        const std::string& why) {
  if (is_reserved(parent_number, name)) return Error(EBUSY, "/" + name + " cannot be removed");
  {
    Change change = begin();
    TRY_ASSIGN(const EntryRecord entry, index_.entry(parent_number, name));
    if (entry.inode != expected) return Error(ENOENT, name + ": something else has that name now");
    TRY_ASSIGN(InodeRecord record, directory(entry.inode));
    TRY_ASSIGN(InodeRecord parent, directory(parent_number));
    TRY(refuse_sealed(parent_number, parent, "removing " + name));
    TRY_ASSIGN(const auto pinned, pinned_folders());
    if (pinned.contains(entry.inode)) return Error(EPERM, path_of(entry.inode) + ": the step is pinned; " + kUnpin);
    change.batch.erase_entry(parent_number, name);
    parent.mtime = parent.ctime = now();
    drop_folder_from(parent);
    change.batch.put(parent_number, parent);
    change.drop_name(expected, record, why);
    TRY(commit(std::move(change)));
  }
  return io::fault_point("take_out.after_batch");
}

Result<Tree::Purged> Tree::purge(InodeNumber number, const std::string& after, size_t most) {
  Purged purged;
  Change change = begin();
  TRY_ASSIGN(const InodeRecord folder, directory(number));
  if (folder.nlink != 0) return Error(EINVAL, path_of(number) + ": it is still in the tree");
  TRY_ASSIGN(const auto entries, index_.entries_after(number, after, most));
  std::unordered_map<InodeNumber, InodeRecord> dropped;  // a file may have several names here
  for (const DirectoryEntry& entry : entries) {
    change.batch.erase_entry(number, entry.name);
    if (!dropped.contains(entry.inode)) {
      auto known = index_.inode(entry.inode);
      if (!known && known.error().errno_value() == ENOENT) {
        ++purged.missing;
        continue;
      }
      TRY_ASSIGN(dropped[entry.inode], std::move(known));
    }
    InodeRecord& record = dropped[entry.inode];
    change.drop_name(entry.inode, record);
    if (record.is_dir()) {
      purged.directories.push_back(entry.inode);
    } else {
      purged.files.push_back({entry.inode, record.nlink == 0});
    }
  }
  purged.done = entries.size() < most;
  if (!entries.empty()) purged.last = entries.back().name;
  TRY(commit(std::move(change)));
  TRY(io::fault_point("purge.after_batch"));
  return purged;
}

void Tree::reap(InodeNumber number) {
  const auto reaped = [&]() -> Result<> {
    TRY_ASSIGN(const InodeRecord before, index_.inode(number));
    if (before.is_dir() && before.nlink == 0) {  // needs no lock, since it gets no new entries
      TRY_ASSIGN(const bool full, index_.has_entries(number));
      if (full) return success();
    }
    Change change = begin();
    TRY_ASSIGN(const InodeRecord record, index_.inode(number));
    if (record.nlink != 0) return success();
    TRY_ASSIGN(const auto names, index_.xattr_names(number));
    for (const std::string& name : names) change.batch.erase_xattr(number, name);
    change.batch.erase_inode(number);
    if (record.blob != 0) TRY(change.drop_reference(record.blob));
    return commit(std::move(change));
  }();
  // If it fails, the next start reaps the inode, since the index still has it without a name.
  if (!reaped && reaped.error().errno_value() != ENOENT) {
    log::warn("inode {} stays until the next mount: {}", number, reaped.error().message());
  }
}

BlobNumber Tree::reserve_blob_number() {
  const io::MutexLock lock(mutex_);
  return next_blob_++;
}

}  // namespace ckptfs::meta
