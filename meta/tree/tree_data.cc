// Tree: a file's blob, who may write it, and its COW reserve.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "io/clone.h"
#include "io/extents.h"
#include "io/fault.h"
#include "io/log.h"
#include "io/preallocated.h"
#include "meta/time.h"
#include "meta/tree/process.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

Result<io::Fd> Tree::open_blob(InodeNumber number, int flags) const {
  const auto current = [&] {
    const io::MutexLock lock(replacing_);
    return index_.inode(number);
  };
  TRY_ASSIGN(const InodeRecord record, current());
  return open_blob(number, record, flags);
}

Result<io::Fd> Tree::open_blob(InodeNumber number, const InodeRecord& record, int flags) const {
  if (!record.is_regular()) return Error(S_ISDIR(record.mode) ? EISDIR : EINVAL);
  if (is_damaged(number)) return Error(EIO, path_of(number) + ": its data is missing or short (see ckptfs status)");
  if ((flags & O_ACCMODE) != O_RDONLY && !record.is_live_file()) return Error(EPERM);
  if ((flags & O_ACCMODE) != O_RDONLY) write_back_.note_written(number, record.blob);
  auto fd = blobs_.open(record.blob, flags & (O_ACCMODE | O_DIRECT | O_SYNC | O_DSYNC));
  if (!fd && fd.error().errno_value() == ENOENT) return Error(EIO, path_of(number) + ": its data is missing");
  if (!fd || record.is_live_file()) return fd;
  TRY_ASSIGN(const struct stat blob, io::stat_fd(fd.value().get()));
  if (static_cast<uint64_t>(blob.st_size) < record.size) return Error(EIO, path_of(number) + ": its data is short");
  return fd;
}

Result<> Tree::sync_file(InodeNumber number, int blob) {
  TRY_ASSIGN(const InodeRecord record, index_.inode(number));
  return write_back_.sync(number, record.blob, blob);
}

void Tree::write_back_failed(InodeNumber number, const InodeRecord& record, int blob, const Error& error) {
  write_back_.failed(number, record.blob, blob, error);
}

// The kernel keeps one error for the whole blob, and reports it through each descriptor that has not reported it yet.
Result<> Tree::check_write_back(InodeNumber number, int blob) {
  TRY_ASSIGN(const InodeRecord record, index_.inode(number));
  return check_write_back(number, record, blob);
}

Result<> Tree::check_write_back(InodeNumber number, const InodeRecord& record, int blob) {
  Result<> told = io::fault_point("tree.check_write_back");
  if (told && ::sync_file_range(blob, 0, 1, SYNC_FILE_RANGE_WAIT_BEFORE) != 0) told = last_error(path_of(number));
  if (told) return refuse_suspect(number, record);
  write_back_failed(number, record, blob, told.error());
  return told;
}

Result<> Tree::write_out(InodeNumber number, int blob, off_t offset, off_t length) {
  constexpr unsigned kToTheDisk = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  Result<> written = io::fault_point("tree.write_out");
  if (written && ::sync_file_range(blob, offset, length, kToTheDisk) != 0) written = last_error("sync_file_range");
  if (written) return success();
  const Error error = with_name(path_of(number), written.error());
  TRY_ASSIGN(const InodeRecord record, index_.inode(number));
  write_back_failed(number, record, blob, error);
  return error;
}

Result<> Tree::refuse_suspect(InodeNumber number, const InodeRecord& record) const {
  const auto checked = write_back_.check(record.blob);
  if (checked) return success();
  return with_name(path_of(number), checked.error());
}

// Notes the process that writes the files of a rank folder. At a save it tells which files an earlier run left behind.
void Tree::note_writer(Change& change, InodeNumber folder, const Caller& caller) {
  mutex_.assert_held();  // by the change
  const uint64_t begun = process_start(caller.pid);
  if (begun != 0) trainers_.insert(begun);
  auto record = change.batch.inode(folder);
  if (begun == 0 || !record || record.value().newest_writer >= begun) return;
  record.value().newest_writer = begun;
  change.batch.put(folder, record.value());
}

// Notes the process that makes files in a rank folder. Swap files that a trainer copies into a step belong to its run.
// Files that anybody else puts there, from a backup say, belong to no known run.
void Tree::note_maker(InodeRecord& folder, const Caller& caller) {
  mutex_.assert_held();  // by the change that the folder is of
  const uint64_t begun = process_start(caller.pid);
  const bool live = (folder.flags & kSwap) != 0;
  if (live && begun != 0) trainers_.insert(begun);
  const bool known = live || trainers_.contains(begun);
  folder.newest_writer = known ? std::max(folder.newest_writer, begun) : 0;
}

Result<> Tree::prepare_writing(InodeNumber number, const Caller& caller, uint64_t others_reserve) {
  auto prepared = try_prepare_writing(number, caller, others_reserve);
  if (prepared || prepared.error().errno_value() != ENOSPC) return prepared;
  // Dirty pages count for the COW reserve until they are written back. So write back and count again before refusing.
  TRY_ASSIGN(const io::Fd blob, open_blob(number, O_RDONLY));
  TRY(sync_file(number, blob.get()));
  finished_writing(number);
  reclaim_space();
  return try_prepare_writing(number, caller, others_reserve);
}

Result<> Tree::set_writer(InodeNumber number, uint64_t writer) {
  Change change = begin();
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  record.newest_writer = writer;
  change.batch.allow_on_full_store();  // what is written takes the place of what there is
  change.batch.put(number, record);
  return commit(std::move(change));
}

Result<> Tree::try_prepare_writing(InodeNumber number, const Caller& caller, uint64_t others_reserve) {
  Change change = begin();
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  if (!record.is_regular()) return Error(EINVAL);
  if (!record.is_live_file()) {
    return Error(EPERM, path_of(number) +
                            ": it is frozen, as all that a save made or a sealed step holds; "
                            "copy it (cp) and write into the copy");
  }
  if (is_damaged(number)) return Error(EIO, path_of(number) + ": its data is missing or short (see ckptfs status)");
  if ((record.flags & kDigested) != 0) TRY(forget_digests(change, number, record));
  write_back_.note_written(number, record.blob);
  // Since a save took the file, its name in the zero_stage_N folder, and with it the flag, may have gone (a hard link
  // remains).
  if ((record.flags & kSwap) == 0 && record.saved_blob == 0) return commit(std::move(change));
  if (record.cow_reserve + others_reserve > 0) {
    TRY_ASSIGN(const SpaceReport space, space_.report());
    if (space.free < record.cow_reserve + others_reserve) {
      return Error(ENOSPC, path_of(number) + ": the swap files open for writing need " +
                               std::to_string((record.cow_reserve + others_reserve) >> 20) + " MiB of new blocks, " +
                               std::to_string(space.free >> 20) + " MiB are free; remove steps");
    }
  }
  if (record.saved_blob != 0) {
    record.saved_blob = 0;
    change.batch.put(number, record);
  }
  note_writer(change, record.parent, caller);
  return commit(std::move(change));
}

// From now on the content of the file may differ from its digests.
Result<> Tree::forget_digests(Change& change, InodeNumber number, InodeRecord& record) {
  record.flags &= ~uint32_t{kDigested};
  change.batch.put(number, record);
  TRY_ASSIGN(BlobRecord blob, change.batch.blob(record.blob));
  if (blob.digest.state == DigestState::none) return success();
  blob.digest.state = DigestState::changed;
  change.batch.put_blob(record.blob, blob);
  return success();
}

Result<> Tree::note_changed(InodeNumber number) {
  Change change = begin();
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  if (!record.is_live_file() || (record.flags & kDigested) == 0) return success();
  TRY(forget_digests(change, number, record));
  change.batch.allow_on_full_store();  // a start after a crash records it
  return commit(std::move(change));
}

void Tree::Change::begin_cloning(const std::unordered_set<InodeNumber>& files) {
  tree_.mutex_.assert_held();
  tree_.cloning_.insert(files.begin(), files.end());
  ++tree_.clonings_;
}

void Tree::end_cloning() {
  const io::MutexLock lock(mutex_);
  cloning_.clear();
  ++clonings_;
}

void Tree::finished_writing(InodeNumber number) {
  space_.note_written();
  if (const auto record = index_.inode(number); record && record.value().is_live_file()) {
    write_back_.note_written(number, record.value().blob);
    write_back_.note_closed(record.value().blob);
  }
  recount_cow_reserve(number);
}

Result<> Tree::begin_sharing(InodeNumber number, const struct stat& shared) {
  Change change = begin();
  mutex_.assert_held();  // by the change
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  const uint64_t cow_reserve = cow_reserve_of_clone(shared);
  const bool owes = (record.flags & kSwap) != 0 && record.is_live_file() && record.nlink != 0;
  if (owes && record.cow_reserve < cow_reserve) {
    change.set_cow_reserve(record, cow_reserve);
    change.batch.put(number, record);
  }
  ++sharing_[number];
  auto reserved = commit(std::move(change));
  if (!reserved) end_sharing(number);
  return reserved;
}

void Tree::end_sharing(InodeNumber number) {
  {
    const io::MutexLock lock(mutex_);
    if (const auto sharing = sharing_.find(number); --sharing->second == 0) sharing_.erase(sharing);
    ++clonings_;  // a count that began before this lacks what was shared
  }
  recount_cow_reserve(number);
}

void Tree::recount_cow_reserve(InodeNumber number) {
  auto done = try_recount_cow_reserve(number);
  while (done && !done.value()) done = try_recount_cow_reserve(number);
  if (!done && done.error().errno_value() != ENOENT) {
    ++release_errors_;
    log::error("{}: its COW reserve was not counted again: {}", path_of(number), done.error().message());
  }
}

// False: the file may have been cloned since its extents were read, so count again.
Result<bool> Tree::try_recount_cow_reserve(InodeNumber number) {
  TRY_ASSIGN(const InodeRecord before, index_.inode(number));
  if (((before.flags & kSwap) == 0 && before.cow_reserve == 0) || before.nlink == 0) return true;
  uint64_t clonings = 0;
  {
    const io::MutexLock lock(mutex_);
    clonings = clonings_;
  }
  TRY_ASSIGN(const io::Fd fd, blobs_.open(before.blob, O_RDONLY));
  TRY_ASSIGN(const struct stat st, io::stat_fd(fd.get()));
  TRY(io::fault_point("tree.finished_writing"));
  const auto size = static_cast<uint64_t>(st.st_size);
  const uint32_t hint = cow_unit(st);
  if (auto set = io::set_cow_extent_hint(fd.get(), hint); !set && set.error().errno_value() != EOPNOTSUPP) {
    return std::move(set).error();
  }
  TRY_ASSIGN(const uint64_t cow_reserve, io::overwrite_allocation(fd.get(), size, hint));
  Change change = begin();
  mutex_.assert_held();                        // by the change
  if (cloning_.contains(number)) return true;  // the save or seal that clones it has set its COW reserve
  if (sharing_.contains(number)) return true;  // it is counted again when that ends
  if (clonings_ != clonings) return false;
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  if (record.cow_reserve != before.cow_reserve || record.cow_reserve == cow_reserve || record.nlink == 0) return true;
  if (!record.is_live_file()) return true;  // it was sealed meanwhile
  change.set_cow_reserve(record, cow_reserve);
  change.batch.put(number, record);
  TRY(commit(std::move(change)));
  return true;
}

Result<> Tree::check_room(InodeNumber number, uint64_t bytes) const {
  TRY_ASSIGN(const InodeRecord record, index_.inode(number));
  const uint64_t all = space_.cow_reserve();
  const uint64_t cow_reserve = all - std::min(all, record.cow_reserve);  // `bytes` are in the file's own reserve
  if (cow_reserve == 0) return success();
  TRY_ASSIGN(SpaceReport space, space_.report());
  if (space.free >= cow_reserve + bytes) return success();
  reclaim_space();
  TRY_ASSIGN(space, space_.report());
  if (space.free >= cow_reserve + bytes) return success();
  return Error(ENOSPC, path_of(number) + ": " + std::to_string(bytes >> 20) + " MiB are wanted, " +
                           std::to_string(space.free >> 20) + " MiB are free, and live swap files need " +
                           std::to_string(cow_reserve >> 20) + " MiB of them; remove steps");
}

bool Tree::short_of_space() const {
  const uint64_t cow_reserve = space_.cow_reserve();
  if (cow_reserve == 0) return false;
  const auto space = space_.report();
  return !space || space.value().free < 2 * cow_reserve;
}

void Tree::reclaim_space() const {
  auto freed = write_back_.sync_all();  // XFS keeps what it preallocated for buffered writers until then
  if (freed) freed = space_.free_preallocated(io::OpenFilesToo::yes);
  if (!freed) log::warn("space is short, and none was reclaimed: {}", freed.error().message());
}

Result<> Tree::recount_cow_reserves() {
  std::vector<InodeNumber> with_reserve;
  TRY(index_.for_each_inode([&](InodeNumber number, const InodeRecord& record) -> Result<> {
    if (record.cow_reserve != 0) with_reserve.push_back(number);
    return success();
  }));
  for (const InodeNumber number : with_reserve) finished_writing(number);
  return success();
}

Result<> Tree::truncate(InodeNumber number, uint64_t size) {
  BlobNumber blob = 0;
  {
    Change change = begin();
    TRY_ASSIGN(InodeRecord record, index_.inode(number));
    if (!record.is_regular()) return Error(S_ISDIR(record.mode) ? EISDIR : EINVAL);
    if (!record.is_live_file()) return Error(EPERM, path_of(number) + ": it is frozen; copy it and truncate the copy");
    blob = record.blob;
    if ((record.flags & kDigested) != 0) TRY(forget_digests(change, number, record));
    if (record.saved_blob != 0) {
      record.saved_blob = 0;
      change.batch.put(number, record);
    }
    if (size == 0) change.batch.allow_on_full_store();  // it makes room
    TRY(commit(std::move(change)));
  }
  TRY_ASSIGN(const io::Fd fd, open_blob(number, O_WRONLY));
  TRY_ASSIGN(const struct stat before, io::stat_fd(fd.get()));
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return last_error();
  finished_writing(number);
  if (static_cast<off_t>(size) < before.st_size) write_back_.note_truncated(blob);
  return size == 0 ? write_back_.trust(blob) : success();
}

}  // namespace ckptfs::meta
