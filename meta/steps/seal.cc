#include "meta/steps/seal.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "io/clone.h"
#include "io/fault.h"
#include "io/lease.h"
#include "io/log.h"
#include "meta/steps/steps.h"
#include "meta/time.h"
#include "meta/tree/unpublished.h"

namespace ckptfs::meta {
namespace {

// A file or directory that will be frozen, with those of its names that will be frozen.
struct Member {
  InodeRecord record;
  std::vector<std::pair<InodeNumber, std::string>> names;  // folder, name
  BlobNumber clone = 0;                                    // frozen instead of its own blob, if that cannot be frozen
};

class Freeze {
 public:
  // Of all that is in the step `top`, which is sealed; or of these files of the folder `top`.
  Freeze(Store& store, InodeNumber top, const std::vector<InodeNumber>* files)
      : store_(store),
        tree_(store.tree()),
        top_(top),
        files_(files),
        flags_(files == nullptr ? uint32_t{kSealed} : 0) {}

  Result<> run() {
    TRY(collect());
    TRY(tree_.write_back().sync_all());  // so that little is left to write behind the gate
    const std::unordered_set<InodeNumber> guarded = to_be_guarded();
    tree_.gate().close(guarded);
    auto frozen = freeze(guarded);
    tree_.end_cloning();
    tree_.gate().open();
    if (!frozen) {
      abandon();
      return frozen;
    }
    for (const auto& [folder, name] : replaced_) store_.open_files().invalidate_name(folder, name);
    return tree_.sync();
  }

 private:
  // Finds the members as they are now.
  Result<> collect() {
    members_.clear();
    return files_ == nullptr ? collect_step() : collect_files();
  }

  Result<> collect_step() {
    TRY_ASSIGN(members_[top_].record, tree_.inode(top_));
    std::vector<InodeNumber> folders{top_};
    while (!folders.empty()) {
      const InodeNumber folder = folders.back();
      folders.pop_back();
      TRY_ASSIGN(const auto entries, tree_.list(folder));
      for (const DirectoryEntry& entry : entries) {
        Member& member = members_[entry.inode];
        member.names.emplace_back(folder, entry.name);
        TRY_ASSIGN(member.record, tree_.inode(entry.inode));
        if (member.record.is_dir()) folders.push_back(entry.inode);
      }
    }
    return success();
  }

  Result<> collect_files() {
    for (const InodeNumber file : *files_) {
      Member& member = members_[file];
      TRY_ASSIGN(member.record, tree_.inode(file));
      if (!member.record.is_regular()) return Error(EINVAL, tree_.path_of(file) + ": it is no regular file");
    }
    TRY_ASSIGN(const auto entries, tree_.list(top_));
    for (const DirectoryEntry& entry : entries) {
      const auto member = members_.find(entry.inode);
      if (member != members_.end()) member->second.names.emplace_back(top_, entry.name);
    }
    for (const auto& [file, member] : members_) {
      if (member.names.empty()) return Error(ENOENT, tree_.path_of(top_) + ": a file of it has gone meanwhile");
    }
    return success();
  }

  // The members, and the folders of their names.
  std::unordered_set<InodeNumber> to_be_guarded() const {
    std::unordered_set<InodeNumber> guarded;
    for (const auto& [number, member] : members_) {
      guarded.insert(number);
      for (const auto& [folder, name] : member.names) guarded.insert(folder);
    }
    return guarded;
  }

  Result<> freeze(const std::unordered_set<InodeNumber>& guarded) {
    TRY(collect());
    for (const InodeNumber number : to_be_guarded()) {
      if (!guarded.contains(number)) return Error(EBUSY, tree_.path_of(top_) + ": files are still being made in it");
    }
    for (auto& [number, member] : members_) {
      if (member.record.is_live_file()) TRY(check_file(number, member));
    }
    const auto synced = tree_.write_back().sync_all();
    for (const auto& [number, member] : members_) {
      if (member.record.is_regular()) TRY(refuse_failed(number, member.record));
    }
    TRY(synced);
    TRY(io::fault_point("seal.before_publish"));
    const bool replacing = std::ranges::any_of(members_, [](const auto& one) { return is_replaced(one.second); });
    return replacing ? publish_replacing() : publish();
  }

  // Asks each file: a failed write-back of what was written under an earlier daemon is known to the file only.
  Result<> refuse_failed(InodeNumber number, const InodeRecord& record) const {
    if (!record.is_live_file()) return tree_.refuse_suspect(number, record);
    TRY_ASSIGN(const io::Fd fd, store_.blobs().open(record.blob, O_RDONLY));
    return tree_.check_write_back(number, fd.get());
  }

  // Does the file get another blob?
  static bool is_replaced(const Member& member) {
    return member.clone != 0 && member.record.nlink == member.names.size();
  }

  // A file that gets another blob may have been opened since it was checked, since opens for reading do not wait at the
  // gate. Its reader would go on to see the blob that can still be written to.
  Result<> publish_replacing() {
    const io::MutexLock lock(tree_.replacing());
    for (const auto& [number, member] : members_) {
      if (is_replaced(member) && store_.open_files().open_at_all(number)) return busy(number);
    }
    return publish();
  }

  // EBUSY: somebody has it open for writing. Makes a clone if the file cannot be frozen itself, that is if it has names
  // outside the step, or a mapping that outlived its descriptor.
  Result<> check_file(InodeNumber number, Member& member) {
    if (tree_.is_damaged(number)) return Error(EIO, tree_.path_of(number) + ": its data is missing or short");
    if (store_.open_files().open_for_writing(number)) return busy(number);
    TRY_ASSIGN(const io::Fd fd, store_.blobs().open(member.record.blob, O_RDONLY));
    TRY_ASSIGN(const bool written, io::has_writer(fd.get()));
    if (written && store_.open_files().open_at_all(number)) return busy(number);
    if (written) log::warn("{}: somebody can write to it who has it not open; a copy is frozen", tree_.path_of(number));
    if (!written && member.record.nlink == member.names.size()) return success();
    return make_clone(number, member, fd.get());
  }

  // Made only if it is needed, since to find a path reads the whole folder.
  Error busy(InodeNumber number) const {
    return Error(EBUSY, tree_.path_of(number) + ": a writer has it open; close it first");
  }

  Result<> make_clone(InodeNumber number, Member& member, int live) {
    {
      Tree::Change change = tree_.begin();
      member.clone = change.promise_blobs(1).front();
      change.begin_cloning({number});
      TRY(tree_.commit(std::move(change)));
    }
    TRY_ASSIGN(const io::Fd frozen, store_.blobs().create(member.clone));
    return io::clone(live, frozen.get());
  }

  Result<> publish() {
    Tree::Change change = tree_.begin();
    for (auto& [number, member] : members_) {
      if (member.record.is_regular()) TRY(check_names(change, number, member));
      if (member.record.is_live_file()) {
        TRY(freeze_file(change, number, member));
      } else if (member.record.is_regular() && member.record.nlink > member.names.size()) {
        TRY(split_frozen(change, number, member));
      } else {
        TRY_ASSIGN(InodeRecord record, change.batch.inode(number));
        record.flags |= flags_;
        change.batch.put(number, record);
      }
    }
    if (files_ == nullptr) TRY(seal(change));
    TRY(tree_.commit(std::move(change)));
    for (auto& [number, member] : members_) member.clone = 0;
    return success();
  }

  // The file may have got or lost names elsewhere since it was checked. If it has lost all of them, it would get its
  // clone for a blob, and nobody has asked who has it open.
  Result<> check_names(const Tree::Change& change, InodeNumber number, Member& member) const {
    TRY_ASSIGN(const InodeRecord record, change.batch.inode(number));
    const bool outside = record.nlink > member.names.size();
    const bool needs_clone = outside && member.record.is_live_file() && member.clone == 0;
    const bool lost_others = !outside && member.clone != 0 && !is_replaced(member);
    if (record.nlink < member.names.size() || needs_clone || lost_others) {
      return Error(EBUSY, tree_.path_of(number) + ": it was linked or unlinked meanwhile; try again");
    }
    member.record.nlink = record.nlink;
    return success();
  }

  Result<> freeze_file(Tree::Change& change, InodeNumber number, Member& member) {
    const BlobNumber blob = member.clone != 0 ? member.clone : member.record.blob;
    TRY_ASSIGN(const struct stat st, store_.blobs().stat(blob));
    TRY_ASSIGN(const struct stat live, store_.blobs().stat(member.record.blob));
    TRY_ASSIGN(InodeRecord record, change.batch.inode(number));
    record.flags = (record.flags | kFrozen | flags_) & ~uint32_t{kSwap};
    record.saved_blob = 0;
    record.size = static_cast<uint64_t>(st.st_size);
    record.blocks = static_cast<uint64_t>(st.st_blocks);
    record.atime = live.st_atim;
    record.mtime = live.st_mtim;
    if (later(live.st_ctim, record.ctime)) record.ctime = live.st_ctim;
    record.blob = blob;
    TRY_ASSIGN(BlobRecord frozen, change.batch.blob(blob));
    frozen.state = BlobState::frozen;
    frozen.references = 1;
    frozen.length = record.size;
    // The file may have changed since its digests were taken, and the inspection would not find that in a frozen file.
    const bool trusted = tree_.is_inspected() || frozen.digest.state == DigestState::none;
    if (!trusted) frozen.digest.state = DigestState::changed;
    change.batch.put_blob(blob, frozen);
    if (member.record.nlink > member.names.size()) {
      record.cow_reserve = 0;
      return give_own_inode(change, number, member, record);
    }
    change.set_cow_reserve(record, 0);
    if (member.clone != 0) TRY(change.drop_reference(member.record.blob));
    change.batch.put(number, record);
    return success();
  }

  // A frozen file has names outside the step, too. Its names in the step get an inode of their own with the same blob.
  Result<> split_frozen(Tree::Change& change, InodeNumber number, Member& member) {
    TRY_ASSIGN(InodeRecord record, change.batch.inode(number));
    record.flags |= flags_;
    TRY_ASSIGN(BlobRecord blob, change.batch.blob(record.blob));
    ++blob.references;
    change.batch.put_blob(record.blob, blob);
    return give_own_inode(change, number, member, record);
  }

  Result<> give_own_inode(Tree::Change& change, InodeNumber number, Member& member, InodeRecord record) {
    TRY_ASSIGN(InodeRecord outside, change.batch.inode(number));
    outside.nlink -= static_cast<uint32_t>(member.names.size());
    outside.ctime = now();
    if (member.clone != 0 && (outside.flags & kSwap) != 0) {
      TRY_ASSIGN(const struct stat shared, store_.blobs().stat(outside.blob));
      change.set_cow_reserve(outside, cow_reserve_of_clone(shared));
    }
    change.batch.put(number, outside);
    const InodeNumber own = change.allot_inode();
    TRY_ASSIGN(const auto xattrs, store_.index().xattr_names(number));
    for (const std::string& name : xattrs) {
      TRY_ASSIGN(const std::string value, store_.index().xattr(number, name));
      change.batch.put_xattr(own, name, value);
    }
    record.nlink = static_cast<uint32_t>(member.names.size());
    std::tie(record.parent, record.name) = member.names.front();
    change.batch.put(own, record);
    for (const auto& [folder, name] : member.names) change.batch.put_entry(folder, name, {own, S_IFREG});
    replaced_.insert(replaced_.end(), member.names.begin(), member.names.end());
    return success();
  }

  void abandon() {
    std::vector<BlobNumber> clones;
    for (const auto& [number, member] : members_) {
      if (member.clone != 0) clones.push_back(member.clone);
    }
    doom_unpublished(tree_, clones, "clones of what could not be frozen");
  }

  Result<> seal(Tree::Change& change) {
    TRY_ASSIGN(InodeRecord folder, change.batch.inode(top_));
    if (folder.nlink == 0) return Error(ENOENT, "the step was removed meanwhile");
    folder.flags |= kSealed | kStep;
    change.batch.put(top_, folder);
    TRY_ASSIGN(StepRecord step, step_record(store_, folder.parent, top_, name_of(tree_, top_)));
    step.sealed = true;
    change.batch.put_step(top_, step);
    // In a Trainer's checkpoint-N lies DeepSpeed's global_stepN, which is sealed, too.
    for (const auto& [number, member] : members_) {
      if (number == top_ || (member.record.flags & kStep) == 0) continue;
      TRY_ASSIGN(StepRecord within, store_.index().step(number));
      within.sealed = true;
      change.batch.put_step(number, within);
    }
    return success();
  }

  Store& store_;
  Tree& tree_;
  const InodeNumber top_;
  const std::vector<InodeNumber>* const files_;
  const uint32_t flags_;  // set in each member, beside kFrozen
  std::map<InodeNumber, Member> members_;
  std::vector<std::pair<InodeNumber, std::string>> replaced_;  // names that lead to another inode now
};

}  // namespace

Result<> seal(Store& store, InodeNumber step) {
  const io::MutexLock one_at_a_time(store.save_mutex());  // the gate has one closer at a time
  const Tree& tree = store.tree();
  TRY_ASSIGN(const bool is_one, is_step(tree, step));
  if (!is_one) return Error(EINVAL, tree.path_of(step) + ": it is no step; seal a step of a series");
  TRY_ASSIGN(const InodeRecord record, tree.inode(step));
  if ((record.flags & kSealed) != 0) return store.tree().sync();  // an earlier seal may have failed to sync it
  return Freeze(store, step, nullptr).run();
}

Result<> freeze_files(Store& store, InodeNumber folder, const std::vector<InodeNumber>& files) {
  if (files.empty()) return success();
  const io::MutexLock one_at_a_time(store.save_mutex());
  return Freeze(store, folder, &files).run();
}

}  // namespace ckptfs::meta
