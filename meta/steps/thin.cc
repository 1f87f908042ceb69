#include "meta/steps/thin.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "io/fault.h"
#include "meta/steps/steps.h"
#include "meta/time.h"
#include "meta/tree/unpublished.h"

namespace ckptfs::meta {
namespace {

class ThinChange {
 public:
  ThinChange(Store& store, const Thinning& thinning) : store_(store), tree_(store.tree()), thinning_(thinning) {}

  Result<Thinned> run() {
    auto changed = change();
    if (!changed) {
      abandon();
      return std::move(changed).error();
    }
    for (const auto& [folder, name] : thinned_.names) store_.open_files().invalidate_name(folder, name);
    store_.open_files().invalidate(thinning_.step);
    return std::move(thinned_);
  }

 private:
  struct Gone {
    InodeNumber folder = 0;
    DirectoryEntry entry;
  };

  Result<> change() {
    TRY(collect());
    const std::unordered_set<InodeNumber> guarded = members_;
    tree_.gate().close(guarded);
    auto changed = behind_gate(guarded);
    tree_.gate().open();
    return changed;
  }

  Result<> behind_gate(const std::unordered_set<InodeNumber>& guarded) {
    TRY(collect());
    const bool all = std::ranges::all_of(members_, [&](InodeNumber member) { return guarded.contains(member); });
    if (!all) return Error(EBUSY, path() + ": files are still being made in it; try again");
    TRY(thinning_.check());
    TRY(io::fault_point("thin.before_publish"));
    return publish();
  }

  // Finds what is in the step, and what of it goes.
  Result<> collect() {
    members_.clear();
    gone_.clear();
    TRY(collect_folder(thinning_.step, "", 0));
    return success();
  }

  // True: all that the folder holds goes, so the folder goes as a whole. The step itself stays.
  Result<bool> collect_folder(InodeNumber folder, const std::string& prefix, size_t depth) {
    if (depth > kDeepestStep) return Error(ELOOP, tree_.path_of(folder) + ": folders lie too deep in each other");
    members_.insert(folder);
    TRY_ASSIGN(const auto entries, tree_.list(folder));
    const size_t before = gone_.size();
    std::vector<DirectoryEntry> going;
    for (const DirectoryEntry& entry : entries) {
      const std::string inside = prefix + entry.name;
      bool goes = entry.type == S_IFREG && thinning_.going.contains(inside);
      members_.insert(entry.inode);
      if (entry.type == S_IFDIR) TRY_SET(goes, collect_folder(entry.inode, inside + '/', depth + 1));
      if (goes) going.push_back(entry);
    }
    if (!entries.empty() && going.size() == entries.size() && depth > 0) {
      gone_.resize(before);
      return true;
    }
    for (DirectoryEntry& entry : going) gone_.push_back({folder, std::move(entry)});
    return false;
  }

  Result<> publish() {
    Tree::Change change = tree_.begin();
    TRY_ASSIGN(const auto pinned, tree_.pinned_folders());
    if (pinned.contains(thinning_.step)) return Error(EPERM, path() + ": the step is pinned; unpin it first");
    for (const Gone& gone : gone_) TRY(drop(change, gone));
    TRY_ASSIGN(InodeRecord* const step, record_of(thinning_.step));
    if (step->nlink == 0) return Error(ENOENT, path() + ": the step was removed meanwhile");
    for (const NewFile& file : thinning_.files) TRY(put_file(change, file, *step));
    step->flags |= kStep;
    step->ctime = now();
    TRY_ASSIGN(const StepRecord record,
               step_record(store_, step->parent, thinning_.step, name_of(tree_, thinning_.step)));
    if (record.being_removed) return Error(ENOENT, path() + ": the step is being removed");
    change.batch.put_step(thinning_.step, record);
    change.batch.erase_map(thinning_.step);
    change.note_event(StepEvent::What::thinned, thinning_.step, *step);
    for (const auto& [number, changed] : records_) change.batch.put(number, changed);
    return tree_.commit(std::move(change));
  }

  // As the change leaves it: a folder loses several names, and a file may have several.
  Result<InodeRecord*> record_of(InodeNumber number) {
    const auto [at, fresh] = records_.try_emplace(number);
    if (fresh) TRY_SET(at->second, store_.index().inode(number));
    return &at->second;
  }

  Result<> drop(Tree::Change& change, const Gone& gone) {
    const InodeNumber number = gone.entry.inode;
    TRY_ASSIGN(InodeRecord* const record, record_of(number));
    TRY_ASSIGN(InodeRecord* const folder, record_of(gone.folder));
    change.batch.erase_entry(gone.folder, gone.entry.name);
    folder->ctime = now();
    thinned_.names.emplace_back(gone.folder, gone.entry.name);
    change.drop_name(number, *record);
    if (!record->is_dir()) {
      thinned_.files.push_back({number, record->nlink == 0});
      return success();
    }
    --folder->nlink;
    thinned_.directories.push_back(number);
    return success();
  }

  // A name that somebody gave to something else meanwhile stays with it.
  Result<> refuse_taken(const std::string& name) const {
    const bool goes = std::ranges::any_of(
        gone_, [&](const Gone& gone) { return gone.folder == thinning_.step && gone.entry.name == name; });
    if (goes || !tree_.child(thinning_.step, name)) return success();
    return Error(EEXIST, path() + '/' + name + ": it was made meanwhile; move it, and thin the step again");
  }

  Result<> put_file(Tree::Change& change, const NewFile& file, const InodeRecord& step) {
    TRY(refuse_taken(file.name));
    const bool sealed = (step.flags & kSealed) != 0;
    TRY_ASSIGN(const struct stat st, store_.blobs().stat(file.blob));
    InodeRecord record;
    record.mode = S_IFREG | file.mode;
    record.uid = file.uid;
    record.gid = file.gid;
    record.nlink = 1;
    if (sealed) record.flags = kFrozen | kSealed;
    record.parent = thinning_.step;
    record.name = file.name;
    record.blob = file.blob;
    record.size = static_cast<uint64_t>(st.st_size);
    record.blocks = static_cast<uint64_t>(st.st_blocks);
    record.atime = record.mtime = file.time;
    record.ctime = now();
    BlobRecord blob;
    if (sealed) blob = {.state = BlobState::frozen, .references = 1, .length = record.size};
    change.batch.put_blob(file.blob, blob);
    const InodeNumber number = change.allot_inode();
    change.batch.put(number, record);
    change.batch.put_entry(thinning_.step, file.name, {number, S_IFREG});
    thinned_.names.emplace_back(thinning_.step, file.name);
    return success();
  }

  void abandon() {
    std::vector<BlobNumber> blobs;
    for (const NewFile& file : thinning_.files) blobs.push_back(file.blob);
    doom_unpublished(tree_, blobs, "files of a thinning that failed");
  }

  std::string path() const { return tree_.path_of(thinning_.step); }

  Store& store_;
  Tree& tree_;
  const Thinning& thinning_;
  std::unordered_set<InodeNumber> members_;  // the step, and all that is in it
  std::vector<Gone> gone_;
  std::map<InodeNumber, InodeRecord> records_;
  Thinned thinned_;
};

}  // namespace

Result<Thinned> thin(Store& store, const Thinning& thinning) {
  const io::MutexLock one_at_a_time(store.save_mutex());  // the gate has one closer at a time
  return ThinChange(store, thinning).run();
}

}  // namespace ckptfs::meta
