// Directories. An open or a rewind takes a snapshot of the names. Offsets are indices into the snapshot, so that
// nothing is skipped if what was read is removed (rm -r).
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "fs/ops/operations.h"
#include "fs/ops/request.h"
#include "fs/views/numbers.h"
#include "meta/names.h"

namespace ckptfs::fs {

namespace {

// "." and ".." come first; entry i of the snapshot is at offset i + kDots.
constexpr size_t kDots = 2;

using Entries = DirectoryHandle::Entries;

std::vector<meta::InodeNumber> abandoned_among(Filesystem& fs, const Entries& entries, uint32_t user) {
  std::vector<meta::InodeNumber> folders;
  if (!fs.set_aside.watches_any()) return folders;
  for (const meta::DirectoryEntry& entry : entries) {
    if (entry.type == S_IFDIR) folders.push_back(entry.inode);
  }
  return fs.set_aside.find_abandoned(folders, user);
}

// Another thread may call `answer`, for a view or once abandoned steps are set aside.
void take_snapshot(const Request& request, const std::function<void(Result<Entries>)>& answer) {
  Filesystem& fs = request.fs();
  if (views::is_virtual(request.inode())) return fs.views.list(request.inode(), request.caller().uid, answer);
  auto entries = fs.tree.list(request.inode());
  if (entries) {
    const auto abandoned = abandoned_among(fs, entries.value(), request.caller().uid);
    const auto answer_again = [request, answer] { answer(request.fs().tree.list(request.inode())); };
    if (!abandoned.empty()) return once_settled(fs, request.inode(), abandoned, request.caller().uid, answer_again);
  }
  if (entries && request.inode() == meta::kRootInode && fs.options.show_views) {
    entries.value().push_back({meta::kViewsName, views::kRoot, S_IFDIR});
  }
  answer(std::move(entries));
}

// EMFILE: the caller holds too much of the daemon's memory already.
Result<> keep(const Request& request, DirectoryHandle& directory, Entries entries) {
  uint64_t bytes = entries.size() * sizeof(meta::DirectoryEntry);
  for (const meta::DirectoryEntry& entry : entries) bytes += entry.name.capacity();
  TRY_ASSIGN(auto claim, request.fs().memory.take(request.caller().uid, bytes));
  directory.replace(std::move(entries), std::move(claim));
  return success();
}

void op_opendir(fuse_req_t req, fuse_ino_t inode, fuse_file_info* given) {
  const Request request(req, Operation::opendir, inode);
  take_snapshot(request, [request, info = *given](Result<Entries> entries) mutable {
    if (!entries) return request.error(entries.error());
    auto directory = std::make_unique<DirectoryHandle>(request.inode());
    const auto kept = keep(request, *directory, std::move(entries).value());
    if (!kept) return request.error(kept.error());
    info.fh = request.fs().directories.add(std::move(directory));
    if (request.answer(fuse_reply_open, &info) != 0) request.fs().directories.take(info.fh);
  });
}

// The buffer of one reply, filled entry by entry.
class Listing {
 public:
  Listing(const Request& request, size_t size, bool plus) : request_(request), buffer_(size), plus_(plus) {}

  // False: it did not fit.
  bool add_dot(const char* name, meta::InodeNumber inode, off_t next) {
    fuse_entry_param entry{};
    entry.attr.st_ino = inode;
    entry.attr.st_mode = S_IFDIR;
    return put(name, entry, next);
  }
  bool add(const meta::DirectoryEntry& listed, off_t next) {
    fuse_entry_param entry{};
    entry.attr.st_ino = listed.inode;
    entry.attr.st_mode = listed.type;
    // The kernel is given no attributes of views here.
    if (!plus_ || views::is_virtual(listed.inode)) return put(listed.name.c_str(), entry, next);
    // Looked up again by name: since the snapshot the name may have gone to another inode, and the kernel would believe
    // the old one for a day.
    const auto found = request_.fs().tree.lookup(request_.inode(), listed.name);
    if (!found) return true;
    entry = request_.fs().entry_of(found.value());
    if (!put(listed.name.c_str(), entry, next)) return false;
    request_.fs().files.add_lookup(entry.ino, listed.name);
    counted_.push_back(entry.ino);
    return true;
  }
  void send() {
    const auto content = std::span<const std::byte>(buffer_).first(used_);
    if (request_.data(content) == 0) return;
    for (const meta::InodeNumber inode : counted_) request_.fs().files.forget(inode, 1);
  }

 private:
  bool put(const char* name, const fuse_entry_param& entry, off_t next) {
    char* const place = reinterpret_cast<char*>(buffer_.data() + used_);
    const size_t room = buffer_.size() - used_;
    const size_t needed = plus_ ? fuse_add_direntry_plus(request_.fuse_request(), place, room, name, &entry, next)
                                : fuse_add_direntry(request_.fuse_request(), place, room, name, &entry.attr, next);
    if (needed > room) return false;
    used_ += needed;
    return true;
  }

  const Request& request_;
  std::vector<std::byte> buffer_;
  const bool plus_;
  size_t used_ = 0;
  std::vector<meta::InodeNumber> counted_;
};

meta::InodeNumber parent_of(const Filesystem& fs, meta::InodeNumber inode) {
  const auto record = fs.tree.inode(inode);
  return record && record.value().parent != 0 ? record.value().parent : meta::kRootInode;
}

void send_listing(const Request& request, size_t size, off_t offset, const DirectoryHandle& directory, bool plus) {
  const auto entries = directory.snapshot();
  Listing listing(request, size, plus);
  for (size_t at = static_cast<size_t>(offset); at < entries->size() + kDots; ++at) {
    const off_t next = static_cast<off_t>(at) + 1;
    bool fits = false;
    if (at == 0) {
      fits = listing.add_dot(".", request.inode(), next);
    } else if (at == 1) {
      fits = listing.add_dot("..", parent_of(request.fs(), request.inode()), next);
    } else {
      fits = listing.add((*entries)[at - kDots], next);
    }
    if (!fits) break;
  }
  listing.send();
}

void list(const Request& request, size_t size, off_t offset, const fuse_file_info& info, bool plus) {
  DirectoryHandle& directory = Handles<DirectoryHandle>::get(info.fh);
  if (offset != 0) return send_listing(request, size, offset, directory, plus);
  take_snapshot(request, [request, size, &directory, plus](Result<Entries> entries) {
    // A removed directory that is still open is empty, not an error.
    if (!entries && entries.error().errno_value() == ENOENT) entries = Entries();
    if (!entries) return request.error(entries.error());
    const auto kept = keep(request, directory, std::move(entries).value());
    if (!kept) return request.error(kept.error());
    send_listing(request, size, 0, directory, plus);
  });
}

void op_readdir(fuse_req_t req, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* info) {
  list(Request(req, Operation::readdir, inode), size, offset, *info, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* info) {
  list(Request(req, Operation::readdirplus, inode), size, offset, *info, true);
}

void op_releasedir(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const Request request(req, Operation::releasedir, inode);
  request.fs().directories.take(info->fh);
  request.ok();
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t inode, int, fuse_file_info*) {
  const Request request(req, Operation::fsyncdir, inode);
  sync_and_answer(request, [request] { request.result(request.fs().tree.sync()); });
}

}  // namespace

void add_directory_operations(fuse_lowlevel_ops& ops) {
  ops.opendir = op_opendir;
  ops.readdir = op_readdir;
  ops.readdirplus = op_readdirplus;
  ops.releasedir = op_releasedir;
  ops.fsyncdir = op_fsyncdir;
}

}  // namespace ckptfs::fs
