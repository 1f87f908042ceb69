// Extended attributes: the user's own are kept in the index, user.ckptfs.* are controls (fs/ops/control_xattrs.h), ACLs
// and the rest of system.* are not supported.
#include <cerrno>
#include <string_view>

#include "fs/ops/control_xattrs.h"
#include "fs/ops/operations.h"
#include "fs/ops/reply.h"

namespace ckptfs::fs {

namespace {

bool is_control(std::string_view name) { return name.starts_with(ControlXattrs::kPrefix); }
std::string control_name(std::string_view name) { return std::string(name.substr(ControlXattrs::kPrefix.size())); }
bool is_unsupported(std::string_view name) { return name.starts_with("system."); }
// The kernel keeps all but root from reading it; whether it is listed is left to the file system.
bool is_trusted(std::string_view name) { return name.starts_with("trusted."); }

// A size of 0 asks for the length.
void answer(const Reply& reply, const std::string& value, size_t size) {
  if (size == 0) {
    reply.answer(fuse_reply_xattr, value.size());
  } else if (value.size() > size) {
    reply.error(ERANGE);
  } else {
    reply.answer(fuse_reply_buf, value.data(), value.size());
  }
}

void op_setxattr(fuse_req_t req, fuse_ino_t inode, const char* name, const char* value, size_t size, int flags) {
  const Reply reply(req, Operation::setxattr, inode);
  if (is_unsupported(name)) return reply.error(EOPNOTSUPP);
  const std::string content(value, size);
  if (is_control(name)) {
    ControlXattrs(reply.fs()).set(inode, control_name(name), content, reply.peer(), [reply](const Result<>& result) {
      reply.result(result);
    });
    return;
  }
  reply.result(reply.fs().tree.set_xattr(inode, name, content, flags));
}

// Which controls depend on who asks; the others are spared the look at who that is.
bool depends_on_caller(std::string_view control) {
  return control == "source" || control == "last_error" || control == "identical_to";
}

// Which controls take a look at the files of a step, of which there may be many.
bool looks_at_steps(std::string_view control) { return control == "state" || control == "identical_to"; }

void answer_control(const Reply& reply, const std::string& name, size_t size) {
  const auto value =
      ControlXattrs(reply.fs()).get(reply.inode(), name, depends_on_caller(name) ? reply.peer() : Peer());
  if (!value) return reply.error(value.error());
  answer(reply, value.value(), size);
}

// What takes long is found on a thread of its own, and not for its length alone: that may be more than it turns out.
void answer_slow_control(const Reply& reply, const std::string& name, size_t size) {
  if (size == 0) {
    const auto longest = ControlXattrs(reply.fs()).longest(reply.inode(), name);
    if (!longest) return reply.error(longest.error());
    reply.answer(fuse_reply_xattr, longest.value());
    return;
  }
  const auto value = ControlXattrs(reply.fs()).get_quickly(reply.inode(), name);
  if (!value) return reply.error(value.error());
  if (value.value()) return answer(reply, *value.value(), size);
  const auto started = reply.fs().tasks.start([reply, name, size] { answer_control(reply, name, size); });
  if (!started) reply.error(started.error());
}

void op_getxattr(fuse_req_t req, fuse_ino_t inode, const char* name, size_t size) {
  const Reply reply(req, Operation::getxattr, inode);
  if (is_unsupported(name)) return reply.error(EOPNOTSUPP);
  if (is_control(name)) {
    const std::string control = control_name(name);
    if (looks_at_steps(control)) {
      const auto work = [reply, control, size] { answer_control(reply, control, size); };
      const auto started = reply.fs().lanes.start(reply.caller().uid, work);
      return started ? void() : reply.error(started.error());
    }
    return (ControlXattrs::is_slow(control) ? answer_slow_control : answer_control)(reply, control, size);
  }
  const auto value = reply.fs().tree.xattr(inode, name);
  if (!value) return reply.error(value.error());
  answer(reply, value.value(), size);
}

void op_listxattr(fuse_req_t req, fuse_ino_t inode, size_t size) {
  const Reply reply(req, Operation::listxattr, inode);
  const auto names = reply.fs().tree.list_xattrs(inode);
  if (!names) return reply.error(names.error());
  const bool may_see_all = reply.caller().uid == 0;
  std::string list;
  for (const std::string& name : names.value()) {
    if (may_see_all || !is_trusted(name)) list.append(name).push_back('\0');
  }
  answer(reply, list, size);
}

void op_removexattr(fuse_req_t req, fuse_ino_t inode, const char* name) {
  const Reply reply(req, Operation::removexattr, inode);
  if (is_unsupported(name)) return reply.error(EOPNOTSUPP);
  if (is_control(name)) {
    return ControlXattrs(reply.fs()).remove(inode, control_name(name), reply.peer(), [reply](const Result<>& result) {
      reply.result(result);
    });
  }
  reply.result(reply.fs().tree.remove_xattr(inode, name));
}

}  // namespace

void add_xattr_operations(fuse_lowlevel_ops& ops) {
  ops.setxattr = op_setxattr;
  ops.getxattr = op_getxattr;
  ops.listxattr = op_listxattr;
  ops.removexattr = op_removexattr;
}

}  // namespace ckptfs::fs
