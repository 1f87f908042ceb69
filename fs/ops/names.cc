// Names: lookup and forget, readlink, and all that makes, moves and removes names. Requests that change a name go
// through the gate of its directories.
#include <sys/stat.h>

#include <cerrno>

#include "fs/ops/operations.h"
#include "fs/ops/request.h"
#include "meta/names.h"

namespace ckptfs::fs {

namespace {

// Refuses the names in the root that only ckptfs may make.
Result<> check_new_name(meta::InodeNumber parent, const std::string& name) {
  if (parent == meta::kRootInode && name == meta::kViewsName) return Error(EBUSY, "/views is a name of ckptfs itself");
  return success();
}

void answer_lookup(const Request& request, const Result<meta::Attributes>& found) {
  if (!found) return request.error(found.error());
  request.entry(found.value());
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  const Request request(req, Operation::lookup, parent, name);
  Filesystem& fs = request.fs();
  const auto look_up = [request] { return request.fs().tree.lookup(request.inode(), request.name()); };
  const auto found = look_up();
  if (found && found.value().record.is_dir()) {
    const uint32_t user = request.caller().uid;
    const meta::InodeNumber inode = found.value().stat.st_ino;
    const auto abandoned = fs.set_aside.find_abandoned({&inode, 1}, user);
    const auto answer_again = [request, look_up] { answer_lookup(request, look_up()); };
    if (!abandoned.empty()) return once_settled(fs, parent, abandoned, user, answer_again);
  }
  answer_lookup(request, found);
}

void op_forget(fuse_req_t req, fuse_ino_t inode, uint64_t lookups) {
  auto& fs = *static_cast<Filesystem*>(fuse_req_userdata(req));
  fs.counters.count(Operation::forget);
  fs.files.forget(inode, lookups);
  fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, fuse_forget_data* forgets) {
  auto& fs = *static_cast<Filesystem*>(fuse_req_userdata(req));
  for (const fuse_forget_data& one : std::span(forgets, count)) {
    fs.counters.count(Operation::forget);
    fs.files.forget(one.ino, one.nlookup);
  }
  fuse_reply_none(req);
}

void make(const Request& request, const meta::NewNode& node) {
  if (const auto allowed = check_new_name(request.inode(), request.name()); !allowed)
    return request.error(allowed.error());
  through_gate(request.fs(), request.inode(), [request, node] {
    const auto made = request.fs().tree.make(request.inode(), request.name(), node, request.caller());
    if (!made) return request.error(made.error());
    if (S_ISDIR(node.mode)) {
      request.fs().saves.made(made.value().stat.st_ino);
      request.fs().writers.note(made.value().stat.st_ino, request.caller());
    } else {
      request.fs().writers.note(request.inode(), request.caller());
    }
    request.entry(made.value());
  });
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  make(Request(req, Operation::mknod, parent, name), {.mode = mode, .rdev = device, .target = {}});
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode) {
  make(Request(req, Operation::mkdir, parent, name), {.mode = (mode & 07777u) | S_IFDIR, .rdev = 0, .target = {}});
}

void op_symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
  make(Request(req, Operation::symlink, parent, name), {.mode = S_IFLNK | 0777, .rdev = 0, .target = target});
}

void op_link(fuse_req_t req, fuse_ino_t inode, fuse_ino_t parent, const char* name) {
  const Request request(req, Operation::link, parent, name);
  if (const auto allowed = check_new_name(parent, name); !allowed) return request.error(allowed.error());
  through_gate(request.fs(), parent, [request, inode] {
    const auto linked = request.fs().tree.link(inode, request.inode(), request.name());
    if (!linked) return request.error(linked.error());
    request.fs().writers.note(request.inode(), request.caller());
    request.entry(linked.value());
  });
}

using Remove = Result<meta::Dropped> (meta::Tree::*)(meta::InodeNumber parent, const std::string& name);

void remove_name(const Request& request, Remove remove) {
  through_gate(request.fs(), request.inode(), [request, remove] {
    const auto dropped = (request.fs().tree.*remove)(request.inode(), request.name());
    if (!dropped) return request.error(dropped.error());
    request.fs().writers.note_lost(request.inode(), request.name(), dropped.value().inode, request.caller());
    request.ok();
    request.fs().dropped(dropped.value());
  });
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char* name) {
  remove_name(Request(req, Operation::unlink, parent, name), &meta::Tree::unlink);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char* name) {
  remove_name(Request(req, Operation::rmdir, parent, name), &meta::Tree::remove_directory);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
               unsigned flags) {
  const Request request(req, Operation::rename, parent, name);
  if (const auto allowed = check_new_name(new_parent, new_name); !allowed) return request.error(allowed.error());
  through_gate(request.fs(), {parent, new_parent}, [request, new_parent, to = std::string(new_name), flags] {
    const auto renamed = request.fs().tree.rename(request.inode(), request.name(), new_parent, to, flags);
    if (!renamed) return request.error(renamed.error());
    request.fs().writers.names_changed();
    if (renamed.value()) {
      request.fs().writers.note_lost(new_parent, to, renamed.value()->inode, request.caller());
    } else {
      request.fs().writers.note(new_parent, request.caller());
    }
    request.ok();
    if (renamed.value()) request.fs().dropped(*renamed.value());
  });
}

void op_readlink(fuse_req_t req, fuse_ino_t inode) {
  const Request request(req, Operation::readlink, inode);
  const auto record = request.fs().tree.inode(inode);
  if (!record) return request.error(record.error());
  if (!S_ISLNK(record.value().mode)) return request.error(EINVAL);
  request.answer(fuse_reply_readlink, record.value().target.c_str());
}

}  // namespace

void add_name_operations(fuse_lowlevel_ops& ops) {
  ops.lookup = op_lookup;
  ops.forget = op_forget;
  ops.forget_multi = op_forget_multi;
  ops.mknod = op_mknod;
  ops.mkdir = op_mkdir;
  ops.symlink = op_symlink;
  ops.link = op_link;
  ops.unlink = op_unlink;
  ops.rmdir = op_rmdir;
  ops.rename = op_rename;
  ops.readlink = op_readlink;
}

}  // namespace ckptfs::fs
