// Tree: reading, attributes, xattrs, and the helpers of all changes. tree_names.cc has names, tree_data.cc has data.
#include "meta/tree/tree.h"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "io/log.h"
#include "meta/names.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {
constexpr uint64_t kDirectorySize = 4096;
}  // namespace

Tree::Tree(Index& index, const Blobs& blobs, Space& space, Start start)
    : index_(index),
      blobs_(blobs),
      space_(space),
      write_back_(index, blobs, [this](InodeNumber number) { return path_of(number); }),
      health_(index, blobs, {start.next_inode, start.inspected, std::move(start.damaged)}),
      doomed_(std::move(start.doomed)),
      entry_added_(std::move(start.entry_added)),
      directory_renamed_(std::move(start.directory_renamed)),
      next_inode_(start.next_inode),
      inode_limit_(start.next_inode),
      next_blob_(start.next_blob),
      blob_limit_(start.next_blob),
      last_event_(start.last_event) {}

Result<InodeRecord> Tree::inode(InodeNumber number) const {
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  if (record.is_live_file() && health_.is_recovered(number)) record.flags |= kRecovered;
  return record;
}

Result<InodeRecord> Tree::directory(InodeNumber number) const {
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  if (!record.is_dir()) return Error(ENOTDIR);
  return record;
}

void Tree::fill_stat(InodeNumber number, Attributes& attributes) const {
  const InodeRecord& record = attributes.record;
  struct stat& st = attributes.stat;
  st.st_ino = number;
  st.st_mode = record.mode;
  st.st_uid = record.uid;
  st.st_gid = record.gid;
  st.st_nlink = record.nlink;
  st.st_rdev = record.rdev;
  st.st_blksize = 4096;
  st.st_size = static_cast<off_t>(record.is_dir() ? kDirectorySize : record.size);
  st.st_blocks = static_cast<blkcnt_t>(record.blocks);
  st.st_atim = record.atime;
  st.st_mtim = record.mtime;
  st.st_ctim = record.ctime;
}

Result<Attributes> Tree::attributes(InodeNumber number) const {
  TRY_ASSIGN(InodeRecord record, inode(number));
  Attributes attributes;
  attributes.record = std::move(record);
  fill_stat(number, attributes);
  if (!attributes.record.is_live_file() || is_damaged(number)) return attributes;
  TRY_ASSIGN(const struct stat blob, blobs_.stat(attributes.record.blob));
  struct stat& st = attributes.stat;
  st.st_size = blob.st_size;
  st.st_blocks = blob.st_blocks;
  st.st_atim = blob.st_atim;
  st.st_mtim = blob.st_mtim;
  if (later(blob.st_ctim, st.st_ctim)) st.st_ctim = blob.st_ctim;
  return attributes;
}

Result<Attributes> Tree::lookup(InodeNumber parent, const std::string& name) const {
  if (name.size() > kMaximumName) return Error(ENAMETOOLONG);
  TRY_ASSIGN(const EntryRecord entry, index_.entry(parent, name));
  return attributes(entry.inode);
}

Result<InodeNumber> Tree::child(InodeNumber parent, const std::string& name) const {
  TRY_ASSIGN(const EntryRecord entry, index_.entry(parent, name));
  return entry.inode;
}

Result<std::vector<DirectoryEntry>> Tree::list(InodeNumber number) const { return index_.entries(number); }

Result<std::vector<DirectoryEntry>> Tree::list_first(InodeNumber number, size_t most) const {
  return index_.entries_after(number, "", most);
}

std::string Tree::path_of(InodeNumber number) const {
  constexpr size_t kLongestPath = 4096;
  std::string path;
  while (number != kRootInode) {
    const auto record = index_.inode(number);
    const auto name = record ? own_name(number, record.value()) : record.error();
    if (!name || path.size() > kLongestPath) return "(inode " + std::to_string(number) + ")" + path;
    path.insert(0, "/" + name.value());
    number = record.value().parent;
  }
  return path.empty() ? "/" : path;
}

// The folder is searched only where the record cannot tell: for a file that lost the name that it was made by (it may
// have others there), for a symlink, and for what an older version made. Of those only a folder may be far behind.
Result<std::string> Tree::own_name(InodeNumber number, const InodeRecord& record) const {
  constexpr size_t kMostSearched = 1024;
  if (record.parent == 0) return Error(ENOENT);
  if (!record.name.empty()) {
    TRY_ASSIGN(const auto named, index_.find_entry(record.parent, record.name));
    if (named && named->inode == number) return record.name;
    TRY_ASSIGN(const InodeRecord again, index_.inode(number));
    if (again.name != record.name || again.parent != record.parent)
      return own_name(number, again);  // it has just moved
    if (record.is_dir()) return std::string("(removed)");
  }
  TRY_ASSIGN(const auto entries,
             record.is_dir() ? index_.entries(record.parent) : index_.entries_after(record.parent, "", kMostSearched));
  const auto found = std::ranges::find(entries, number, &DirectoryEntry::inode);
  if (found != entries.end()) return found->name;
  return entries.size() == kMostSearched ? "(inode " + std::to_string(number) + ")" : "(removed)";
}

Result<InodeNumber> Tree::resolve(const std::string& path) const {
  InodeNumber number = kRootInode;
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    if (!name.empty() && name != ".") {
      const auto entry = index_.entry(number, name);
      if (!entry) return with_name(path, entry.error());
      number = entry.value().inode;
    }
    begin = end + 1;
  }
  return number;
}

Result<std::unordered_set<InodeNumber>> Tree::pinned_folders() const {
  std::vector<InodeNumber> noted;
  {
    const io::MutexLock lock(pinned_mutex_);
    noted.assign(pinned_.begin(), pinned_.end());
  }
  std::unordered_set<InodeNumber> folders;
  for (const InodeNumber step : noted) {
    TRY_ASSIGN(const auto record, index_.find_step(step));
    const bool pinned = record && record->pinned;
    for (InodeNumber at = pinned ? step : 0; at != 0 && at != kRootInode && folders.insert(at).second;) {
      TRY_ASSIGN(const auto folder, none_if_gone(index_.inode(at)));
      if (!folder) break;  // out of the tree
      at = folder->parent;
    }
  }
  return folders;
}

void Tree::note_pinned(InodeNumber step) {
  const io::MutexLock lock(pinned_mutex_);
  pinned_.insert(step);
}

Result<> Tree::change_attributes(InodeNumber number, const AttributeChange& wanted) {
  Change change = begin();
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  TRY(refuse_sealed(number, record, "changing attributes"));
  if (wanted.mode) record.mode = (record.mode & S_IFMT) | (*wanted.mode & 07777);
  if (wanted.uid) record.uid = *wanted.uid;
  if (wanted.gid) record.gid = *wanted.gid;
  record.ctime = now();
  if (record.is_live_file()) {
    if (wanted.atime || wanted.mtime) {
      const timespec omit{0, UTIME_OMIT};
      TRY(blobs_.set_times(record.blob, wanted.atime.value_or(omit), wanted.mtime.value_or(omit)));
    }
  } else {
    if (wanted.atime) record.atime = *wanted.atime;
    if (wanted.mtime) record.mtime = *wanted.mtime;
  }
  change.batch.put(number, record);
  return commit(std::move(change));
}

Result<std::string> Tree::xattr(InodeNumber number, const std::string& name) const {
  auto value = index_.xattr(number, name);
  if (!value && value.error().errno_value() == ENOENT) return Error(ENODATA);
  return value;
}

Result<> Tree::set_xattr(InodeNumber number, const std::string& name, const std::string& value, int flags) {
  Change change = begin();
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  TRY(refuse_sealed(number, record, "setting an xattr"));
  TRY_ASSIGN(const auto present, none_if_gone(index_.xattr(number, name)));
  if (present && (flags & XATTR_CREATE) != 0) return Error(EEXIST);
  if (!present && (flags & XATTR_REPLACE) != 0) return Error(ENODATA);
  record.ctime = now();
  change.batch.put_xattr(number, name, value);
  change.batch.put(number, record);
  return commit(std::move(change));
}

Result<std::vector<std::string>> Tree::list_xattrs(InodeNumber number) const {
  TRY_ASSIGN(auto names, index_.xattr_names(number));
  std::erase_if(names, [](const std::string& name) { return name.starts_with(kControlPrefix); });
  return names;
}

Result<> Tree::remove_xattr(InodeNumber number, const std::string& name) {
  Change change = begin();
  TRY_ASSIGN(InodeRecord record, index_.inode(number));
  TRY(refuse_sealed(number, record, "removing an xattr"));
  TRY(xattr(number, name));
  record.ctime = now();
  change.batch.erase_xattr(number, name);
  change.batch.put(number, record);
  return commit(std::move(change));
}

Result<> Tree::sync() { return index_.sync(); }

// --- what all changes share

Result<> Tree::commit(Change change) {
  mutex_.assert_held();  // by the change
  uint64_t last = last_event_;
  for (const StepEvent& event : change.events_) change.batch.put_event(++last, encode_event(event));
  TRY(index_.commit(std::move(change.batch)));
  last_event_ = last;
  inode_limit_ = change.inode_limit_;
  blob_limit_ = change.blob_limit_;
  for (const auto& [from, to] : change.reserve_changes_) space_.adjust_cow_reserve(from, to);
  for (const BlobNumber blob : change.doomed) doomed_(blob);
  return success();
}

InodeNumber Tree::Change::allot_inode() {
  tree_.mutex_.assert_held();
  const InodeNumber number = tree_.next_inode_++;
  if (tree_.next_inode_ > inode_limit_) {
    inode_limit_ = tree_.next_inode_ + kNumberBlock;
    batch.put_number(kInodeLimitKey, inode_limit_);
  }
  return number;
}

BlobNumber Tree::Change::allot_blobs(uint64_t count) {
  tree_.mutex_.assert_held();
  const BlobNumber first = tree_.next_blob_;
  tree_.next_blob_ += count;
  if (tree_.next_blob_ > blob_limit_) {
    blob_limit_ = tree_.next_blob_ + kNumberBlock;
    batch.put_number(kBlobLimitKey, blob_limit_);
  }
  return first;
}

std::vector<BlobNumber> Tree::Change::promise_blobs(size_t count) {
  std::vector<BlobNumber> blobs(count);
  std::iota(blobs.begin(), blobs.end(), allot_blobs(count));
  for (const BlobNumber blob : blobs) batch.put_blob(blob, {.state = BlobState::tentative, .references = 0});
  return blobs;
}

void Tree::Change::add_child(InodeNumber parent_number, InodeRecord& parent, const std::string& name,
                             InodeNumber number, const InodeRecord& child) {
  parent.mtime = parent.ctime = now();
  if (child.is_dir()) ++parent.nlink;
  batch.put(number, child);
  batch.put_entry(parent_number, name, {number, child.mode & S_IFMT});
}

Result<> Tree::Change::drop_reference(BlobNumber blob) {
  TRY_ASSIGN(BlobRecord record, batch.blob(blob));
  if (record.references > 1) {
    --record.references;
    batch.put_blob(blob, record);
    return success();
  }
  record.references = 0;
  record.state = BlobState::doomed;
  batch.put_blob(blob, record);
  doomed.push_back(blob);
  return success();
}

// A step is what has the mark of one, a step's name, or a ledger, from which some events come.
bool Tree::is_told_of(StepEvent::What what, InodeNumber directory, const InodeRecord& record,
                      const std::string& name) const {
  if (is_partial_name(name)) return false;
  using enum StepEvent::What;
  const bool of_ledger = what == began || what == completed || what == pushed;
  return of_ledger || (record.flags & kStep) != 0 || step_number(name) || index_.xattr(directory, kLedgerXattr);
}

void Tree::Change::note_event(StepEvent::What what, InodeNumber directory, const InodeRecord& record,
                              const std::string& detail) {
  if (!record.is_dir()) return;
  const auto above = tree_.index_.inode(record.parent);
  if (above && (above.value().flags & kSeries) == 0) return;
  const auto name = above ? tree_.own_name(directory, record) : above.error();
  if (!name) {
    log::warn("inode {}: that it was {} is not told to who watches: {}", directory, name_of(what),
              name.error().message());
    return;
  }
  if (!tree_.is_told_of(what, directory, record, name.value())) return;
  events_.push_back({what, wall_time(now()), directory, record.parent, record.uid, name.value(), detail});
}

void Tree::Change::drop_name(InodeNumber number, InodeRecord& record, const std::string& why) {
  note_event(StepEvent::What::removed, number, record, why);
  record.nlink = record.is_dir() ? 0 : record.nlink - 1;
  record.ctime = now();
  if (record.nlink == 0) set_cow_reserve(record, 0);
  if (record.is_dir() && (record.flags & kStep) != 0) batch.erase_step(number);
  if (record.is_dir()) batch.erase_map(number);
  batch.put(number, record);
}

void Tree::Change::set_cow_reserve(InodeRecord& record, uint64_t bytes) {
  if (record.cow_reserve == bytes) return;
  reserve_changes_.emplace_back(record.cow_reserve, bytes);
  record.cow_reserve = bytes;
}

Result<InodeNumber> Tree::step_of(InodeNumber number) const {
  while (number != kRootInode && number != 0) {
    TRY_ASSIGN(const InodeRecord record, index_.inode(number));
    if ((record.flags & kStep) != 0) return number;
    number = record.parent;
  }
  return InodeNumber{0};
}

Result<> Tree::refuse_sealed(InodeNumber number, const InodeRecord& record, const std::string& what) const {
  if ((record.flags & kSealed) == 0) return success();
  return Error(EPERM,
               path_of(number) + ": " + what + " is not possible in a sealed step; copy what you need out of it");
}

}  // namespace ckptfs::meta
