// Names: lookup and forget, everything that makes, moves and removes them, and readlink. What changes a name goes
// through the gate of its directories.
#include <sys/stat.h>

#include <cerrno>

#include "fs/ops/operations.h"
#include "fs/ops/reply.h"
#include "meta/names.h"

namespace ckptfs::fs {

namespace {

// Names in the root that are not the user's to make.
Result<> check_new_name(meta::InodeNumber parent, const std::string& name) {
  if (parent == meta::kRootInode && name == meta::kViewsName) return Error(EBUSY, "/views is a name of ckptfs itself");
  return success();
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  const Reply reply(req, Operation::lookup, parent, name);
  const auto found = reply.fs().tree.lookup(parent, reply.name());
  if (!found) return reply.error(found.error());
  reply.entry(found.value());
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

void make(const Reply& reply, const meta::NewNode& node) {
  if (const auto allowed = check_new_name(reply.inode(), reply.name()); !allowed) return reply.error(allowed.error());
  through_gate(reply.fs(), reply.inode(), [reply, node] {
    const auto made = reply.fs().tree.make(reply.inode(), reply.name(), node, reply.caller());
    if (!made) return reply.error(made.error());
    if (S_ISDIR(node.mode)) reply.fs().saves.made(made.value().stat.st_ino);
    reply.entry(made.value());
  });
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  make(Reply(req, Operation::mknod, parent, name), {.mode = mode, .rdev = device, .target = {}});
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode) {
  make(Reply(req, Operation::mkdir, parent, name), {.mode = (mode & 07777u) | S_IFDIR, .rdev = 0, .target = {}});
}

void op_symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
  make(Reply(req, Operation::symlink, parent, name), {.mode = S_IFLNK | 0777, .rdev = 0, .target = target});
}

void op_link(fuse_req_t req, fuse_ino_t inode, fuse_ino_t parent, const char* name) {
  const Reply reply(req, Operation::link, parent, name);
  if (const auto allowed = check_new_name(parent, name); !allowed) return reply.error(allowed.error());
  through_gate(reply.fs(), parent, [reply, inode] {
    const auto linked = reply.fs().tree.link(inode, reply.inode(), reply.name());
    if (!linked) return reply.error(linked.error());
    reply.entry(linked.value());
  });
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char* name) {
  const Reply reply(req, Operation::unlink, parent, name);
  through_gate(reply.fs(), parent, [reply] {
    const auto dropped = reply.fs().tree.unlink(reply.inode(), reply.name());
    if (!dropped) return reply.error(dropped.error());
    reply.ok();
    reply.fs().dropped(dropped.value());
  });
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char* name) {
  const Reply reply(req, Operation::rmdir, parent, name);
  through_gate(reply.fs(), parent, [reply] {
    const auto dropped = reply.fs().tree.remove_directory(reply.inode(), reply.name());
    if (!dropped) return reply.error(dropped.error());
    reply.ok();
    reply.fs().dropped(dropped.value());
  });
}

// A copy that is adopted still would be cut by a start after a crash (meta/frontiers.h): it is made durable before it
// takes another file's place.
Result<> settle_replacing(Filesystem& fs, meta::InodeNumber parent, const std::string& name,
                          meta::InodeNumber new_parent, const std::string& new_name) {
  if (!fs.adoptions.knows_any() || !fs.tree.child(new_parent, new_name)) return success();
  const auto moved = fs.tree.child(parent, name);
  return moved && fs.adoptions.knows(moved.value()) ? fs.file_sync.sync_file(moved.value()) : success();
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
               unsigned flags) {
  const Reply reply(req, Operation::rename, parent, name);
  if (const auto allowed = check_new_name(new_parent, new_name); !allowed) return reply.error(allowed.error());
  through_gate(reply.fs(), {parent, new_parent}, [reply, new_parent, to = std::string(new_name), flags] {
    const auto settled = settle_replacing(reply.fs(), reply.inode(), reply.name(), new_parent, to);
    if (!settled) return reply.logged_error(settled.error());
    const auto renamed = reply.fs().tree.rename(reply.inode(), reply.name(), new_parent, to, flags);
    if (!renamed) return reply.error(renamed.error());
    reply.ok();
    if (renamed.value()) reply.fs().dropped(*renamed.value());
  });
}

void op_readlink(fuse_req_t req, fuse_ino_t inode) {
  const Reply reply(req, Operation::readlink, inode);
  const auto record = reply.fs().tree.inode(inode);
  if (!record) return reply.error(record.error());
  if (!S_ISLNK(record.value().mode)) return reply.error(EINVAL);
  reply.answer(fuse_reply_readlink, record.value().target.c_str());
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
