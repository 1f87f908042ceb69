// copy_file_range, which `cp` calls once for each file. The copy shares the source's blocks.
#include <cerrno>

#include "fs/open/copy_range.h"
#include "fs/ops/operations.h"
#include "fs/ops/request.h"
#include "io/log.h"

namespace ckptfs::fs {

namespace {

bool overlap(off_t a, off_t b, size_t length) {
  const auto distance = static_cast<uint64_t>(a < b ? b - a : a - b);
  return distance < length;
}

struct CopyRequest {
  meta::InodeNumber from = 0;  // in the tree or in a view
  int from_descriptor = -1;
  off_t from_offset = 0;
  meta::InodeNumber to = 0;
  off_t to_offset = 0;
  size_t length = 0;
  bool share = true;
};

Result<uint64_t> copy(Filesystem& fs, const CopyRequest& range) {
  TRY_ASSIGN(const meta::InodeRecord destination, fs.tree.inode(range.to));
  if ((destination.flags & meta::kFrozen) != 0) {
    return Error(EPERM, "a file of a step is never written again; copy it and write the copy");
  }
  if (range.from == range.to && overlap(range.from_offset, range.to_offset, range.length)) {
    return Error(EINVAL);
  }
  if (!views::is_virtual(range.from)) {
    TRY_ASSIGN(const meta::InodeRecord source, fs.tree.inode(range.from));
    TRY(fs.tree.refuse_suspect(range.from, source));
  }
  // Opened for this call only. While no open writes through the daemon, the daemon has nothing open for writing, so
  // that lease probes are right.
  TRY_ASSIGN(const io::Fd blob, fs.tree.open_blob(range.to, O_RDWR));
  const Copied copied =
      copy_range({range.from_descriptor, blob.get(), range.from_offset, range.to_offset, range.length, range.share});
  add(fs.counters.clones, copied.cloned > 0 ? 1 : 0);
  add(fs.counters.bytes_cloned, copied.cloned);
  add(fs.counters.bytes_copied, copied.copied);
  if (copied.clone_refused) {
    if (value(fs.counters.clone_fallbacks) == 0) {
      log::warn("{}: a range could not be shared with its copy, and was copied; others will be counted in silence",
                fs.tree.path_of(range.to));
    }
    add(fs.counters.clone_fallbacks);
  }
  if (!views::is_virtual(range.from)) {
    const auto source = copied.error ? fs.tree.sync_file(range.from, range.from_descriptor)
                                     : fs.tree.check_write_back(range.from, range.from_descriptor);
    if (!source) {  // the shared blocks are not what the source should hold
      fs.write_errors.failed(range.to, WriteFailure::copy_file_range, source.error());
      return source.error();
    }
  }
  if (copied.error) {
    fs.write_errors.failed(range.to, WriteFailure::copy_file_range, *copied.error);
    if (copied.bytes() == 0) return *copied.error;
  }
  return copied.bytes();
}

// -1: a file of a view whose bytes the daemon makes when they are read.
int descriptor_of(meta::InodeNumber inode, const fuse_file_info& info) {
  if (views::is_virtual(inode)) {
    const auto& blocks = Handles<ViewHandle>::get(info.fh).file->blocks();
    return blocks ? blocks->descriptor() : -1;
  }
  return Handles<Handle>::get(info.fh).descriptor;
}

bool may_share_source(const Request& request, meta::InodeNumber from) {
  if (views::is_virtual(from)) return true;
  const auto record = request.fs().tree.inode(from);
  const meta::Caller caller = request.caller();
  if (!record || may_share({caller.uid, caller.gid, {}}, record.value())) return true;
  return may_share(request.peer().credentials, record.value());
}

// Both files may share blocks now, also if the copy failed behind that. If one is a live swap file, its COW reserve has
// grown. That is counted before the caller is answered, so that an open that follows at once sees it.
void note_shared(Filesystem& fs, const CopyRequest& range) {
  if (!views::is_virtual(range.from)) fs.tree.recount_cow_reserve(range.from);
  fs.tree.recount_cow_reserve(range.to);
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t from, off_t from_offset, fuse_file_info* from_info, fuse_ino_t to,
                        off_t to_offset, fuse_file_info*, size_t length, int flags) {
  const Request request(req, Operation::copy_file_range, to);
  if (flags != 0) return request.error(EINVAL);
  const CopyRequest range{from,   descriptor_of(from, *from_info), from_offset, to, to_offset,
                          length, may_share_source(request, from)};
  if (range.from_descriptor < 0) return request.error(EOPNOTSUPP);  // the kernel then copies through its cache
  through_gate(request.fs(), to, [request, range] {
    const auto copied = copy(request.fs(), range);
    note_shared(request.fs(), range);
    if (!copied) return request.error(copied.error());
    if (const auto cleared = request.fs().privileges.clear(request.inode(), request.caller()); !cleared) {
      return request.error(cleared.error());
    }
    request.answer(fuse_reply_write, copied.value());
  });
}

}  // namespace

void add_copy_operations(fuse_lowlevel_ops& ops) { ops.copy_file_range = op_copy_file_range; }

}  // namespace ckptfs::fs
