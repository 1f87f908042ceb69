// The operations on views: lookup, attributes, links and reading. Requests that would change a view get EROFS.
// Directories are listed by directory.cc.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "fs/ops/operations.h"
#include "fs/ops/request.h"
#include "io/aligned_buffer.h"
#include "meta/names.h"

namespace ckptfs::fs {

namespace {

using views::Views;

thread_local io::AlignedBuffer reply_buffer;

// The kernel may cache only what is inside a sealed step's view, which never changes. A live step's view follows its
// files, and steps come and go.
double timeout_of(const Views::ViewNode& found) {
  return found.of && found.of->sealed && found.node != 0 ? kLongTimeout : 0;
}

fuse_entry_param entry_of(const Views::ViewNode& found) {
  fuse_entry_param entry{};
  entry.ino = found.number;
  entry.attr = found.stat;
  entry.attr_timeout = entry.entry_timeout = timeout_of(found);
  return entry;
}

void reply_entry(const Request& request, const Result<Views::ViewNode>& found) {
  if (!found) return request.error(found.error());
  const fuse_entry_param entry = entry_of(found.value());
  request.answer(fuse_reply_entry, &entry);
}

void view_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  const Request request(req, Operation::lookup, parent, name);
  request.fs().views.lookup(parent, request.name(), request.caller().uid,
                            [request](const Result<Views::ViewNode>& found) { reply_entry(request, found); });
}

void view_getattr(fuse_req_t req, fuse_ino_t inode, fuse_file_info*) {
  const Request request(req, Operation::getattr, inode);
  request.fs().views.find(inode, request.caller().uid, [request](const Result<Views::ViewNode>& found) {
    if (!found) return request.error(found.error());
    request.answer(fuse_reply_attr, &found.value().stat, timeout_of(found.value()));
  });
}

void view_readlink(fuse_req_t req, fuse_ino_t inode) {
  const Request request(req, Operation::readlink, inode);
  request.fs().views.find(inode, request.caller().uid, [request](const Result<Views::ViewNode>& found) {
    if (!found) return request.error(found.error());
    if (!S_ISLNK(found.value().stat.st_mode)) return request.error(EINVAL);
    request.answer(fuse_reply_readlink, found.value().of->view.node(found.value().node)->text->c_str());
  });
}

void open_found(const Request& request, const Views::ViewNode& found, fuse_file_info info) {
  Filesystem& fs = request.fs();
  auto opened = fs.view_files.open(found);
  if (!opened) return request.error(opened.error());
  auto file = std::move(opened).value();
  if (const auto held = file->claim(fs.memory, request.caller().uid); !held) return request.error(held.error());
  auto claim = fs.descriptors.take(request.caller().uid, file->descriptors());
  if (!claim) return request.error(claim.error());
  fs.views.opened(found.number, file->view());
  add(fs.counters.opens_of_views);
  if (const auto& blocks = file->blocks()) {
    info.backing_id = blocks->backing_id();
    info.direct_io = fs.modes.must_be_served(info.flags, {}, false) ? 1 : 0;
    if (info.direct_io == 0) add(fs.counters.opens_of_shared_views);
  } else {
    info.keep_cache = 1;  // other bytes have another inode number
  }
  info.noflush = 1;
  info.fh = fs.view_handles.add(std::make_unique<ViewHandle>(ViewHandle{std::move(claim).value(), std::move(file)}));
  if (request.answer(fuse_reply_open, &info) != 0) fs.view_handles.take(info.fh);
}

void view_open(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const Request request(req, Operation::open, inode);
  if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) return request.error(EROFS);
  const uint32_t user = request.caller().uid;
  request.fs().views.find_now(inode, user, [request, user, info = *info](const Result<Views::ViewNode>& found) {
    if (!found) return request.error(found.error());
    if (!S_ISREG(found.value().stat.st_mode)) return request.error(EISDIR);
    const auto work = [request, found = found.value(), info] { open_found(request, found, info); };
    if (request.fs().view_files.opens_quickly(found.value())) return work();
    if (const auto started = request.fs().lanes.start(user, work); !started) request.error(started.error());
  });
}

void read_view(const Request& request, const ViewFile& file, size_t size, uint64_t offset) {
  const auto buffer = reply_buffer.get(size);
  if (buffer.size() < size) return request.error(ENOMEM);
  const auto got = file.read(buffer.first(size), offset);
  if (!got) {
    add(request.fs().counters.read_errors);
    return request.error(got.error());
  }
  request.data(buffer.first(got.value()));
}

void view_read(fuse_req_t req, fuse_ino_t inode, size_t size, off_t given, fuse_file_info* info) {
  const Request request(req, Operation::read, inode);
  const std::shared_ptr<ViewFile> file = Handles<ViewHandle>::get(info->fh).file;
  const auto offset = static_cast<uint64_t>(given);
  if (file->reads_quickly(offset, size)) return read_view(request, *file, size, offset);
  const auto started = request.fs().lanes.start(request.caller().uid, [request, file, size, offset] {
    return request.fs().leaving ? request.error(ECANCELED) : read_view(request, *file, size, offset);
  });
  if (!started) request.error(started.error());
}

void view_release(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const Request request(req, Operation::release, inode);
  request.fs().view_handles.take(info->fh);
  request.ok();
}

void view_flush(fuse_req_t req, fuse_ino_t inode, fuse_file_info*) { Request(req, Operation::flush, inode).ok(); }

void view_lseek(fuse_req_t req, fuse_ino_t inode, off_t offset, int whence, fuse_file_info* info) {
  const Request request(req, Operation::lseek, inode);
  const auto size = static_cast<off_t>(Handles<ViewHandle>::get(info->fh).file->size());
  if (whence != SEEK_DATA && whence != SEEK_HOLE) return request.error(EINVAL);
  if (offset < 0 || offset >= size) return request.error(ENXIO);
  request.answer(fuse_reply_lseek, whence == SEEK_DATA ? offset : size);
}

void view_fsync(fuse_req_t req, fuse_ino_t inode, int, fuse_file_info*) { Request(req, Operation::fsync, inode).ok(); }

void view_getxattr(fuse_req_t req, fuse_ino_t inode, const char* name, size_t) {
  Request(req, Operation::getxattr, inode, name).error(ENODATA);
}

void view_listxattr(fuse_req_t req, fuse_ino_t inode, size_t size) {
  const Request request(req, Operation::listxattr, inode);
  if (size == 0) {
    request.answer(fuse_reply_xattr, size_t{0});
  } else {
    request.data({});
  }
}

fuse_lowlevel_ops view_operations() {
  fuse_lowlevel_ops ops{};
  ops.lookup = view_lookup;
  ops.getattr = view_getattr;
  ops.readlink = view_readlink;
  ops.open = view_open;
  ops.read = view_read;
  ops.flush = view_flush;
  ops.release = view_release;
  ops.lseek = view_lseek;
  ops.fsync = view_fsync;
  ops.getxattr = view_getxattr;
  ops.listxattr = view_listxattr;
  return ops;
}

// The tables of operations on inodes of the tree and on inodes of views. Set once, before the first request.
fuse_lowlevel_ops of_tree;
fuse_lowlevel_ops of_views;

template <auto Member>
struct Route;
template <class... Arguments, void (*fuse_lowlevel_ops::*Member)(fuse_req_t, fuse_ino_t, Arguments...)>
struct Route<Member> {
  static void call(fuse_req_t req, fuse_ino_t inode, Arguments... arguments) {
    const auto operation = (views::is_virtual(inode) ? of_views : of_tree).*Member;
    if (operation == nullptr) {
      fuse_reply_err(req, EROFS);
    } else {
      operation(req, inode, arguments...);
    }
  }
};

template <auto... Members>
void route(fuse_lowlevel_ops& ops) {
  ((ops.*Members = Route<Members>::call), ...);
}

// The requests about two inodes. Neither inode may be in a view, except the source of a copy.
void routed_symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
  if (views::is_virtual(parent)) {
    fuse_reply_err(req, EROFS);
  } else {
    of_tree.symlink(req, target, parent, name);
  }
}

void routed_link(fuse_req_t req, fuse_ino_t inode, fuse_ino_t parent, const char* name) {
  if (views::is_virtual(inode) || views::is_virtual(parent)) {
    fuse_reply_err(req, views::is_virtual(parent) ? EROFS : EXDEV);
  } else {
    of_tree.link(req, inode, parent, name);
  }
}

void routed_rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
                   unsigned flags) {
  if (views::is_virtual(parent) || views::is_virtual(new_parent)) {
    fuse_reply_err(req, EROFS);
  } else {
    of_tree.rename(req, parent, name, new_parent, new_name, flags);
  }
}

// The kernel counts lookups of views, too. The daemon does not.
void routed_forget(fuse_req_t req, fuse_ino_t inode, uint64_t lookups) {
  if (views::is_virtual(inode)) {
    fuse_reply_none(req);
  } else {
    of_tree.forget(req, inode, lookups);
  }
}

// The root has one virtual name: /views.
void routed_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  if (parent == meta::kRootInode && std::string_view(name) == meta::kViewsName) {
    const Request request(req, Operation::lookup, parent, name);
    request.fs().views.find(views::kRoot, request.caller().uid,
                            [request](const Result<Views::ViewNode>& found) { reply_entry(request, found); });
  } else {
    Route<&fuse_lowlevel_ops::lookup>::call(req, parent, name);
  }
}

}  // namespace

fuse_lowlevel_ops with_views(const fuse_lowlevel_ops& operations) {
  using Ops = fuse_lowlevel_ops;
  of_tree = operations;
  of_views = view_operations();
  Ops ops = operations;
  route<&Ops::getattr, &Ops::setattr, &Ops::readlink, &Ops::mknod, &Ops::mkdir, &Ops::unlink, &Ops::rmdir, &Ops::create,
        &Ops::open, &Ops::read, &Ops::write, &Ops::flush, &Ops::release, &Ops::fsync, &Ops::setxattr, &Ops::getxattr,
        &Ops::listxattr, &Ops::removexattr, &Ops::fallocate, &Ops::lseek>(ops);
  ops.lookup = routed_lookup;
  ops.symlink = routed_symlink;
  ops.link = routed_link;
  ops.rename = routed_rename;
  ops.forget = routed_forget;
  return ops;
}

}  // namespace ckptfs::fs
