// Extended attributes. The user's own are kept in the index. Those in user.ckptfs.* are controls
// (fs/ops/control_xattrs.h). ACLs and all names outside of user, trusted and security are not supported, as on XFS. Nor
// are the capabilities of files (setcap): every write would have to clear them, also one that bypasses the daemon.
#include <cerrno>
#include <string_view>

#include "fs/ops/control_xattrs.h"
#include "fs/ops/operations.h"
#include "fs/ops/request.h"

namespace ckptfs::fs {

namespace {

bool is_control(std::string_view name) { return name.starts_with(ControlXattrs::kPrefix); }
std::string control_name(std::string_view name) { return std::string(name.substr(ControlXattrs::kPrefix.size())); }
bool is_unsupported(std::string_view name) {
  if (name == "security.capability") return true;
  return !name.starts_with("user.") && !name.starts_with("trusted.") && !name.starts_with("security.");
}
// The kernel lets only root read such an xattr, but leaves it to the file system whether it is listed.
bool is_trusted(std::string_view name) { return name.starts_with("trusted."); }

// A size of 0 asks for the length.
void answer(const Request& request, const std::string& value, size_t size) {
  if (size == 0) {
    request.answer(fuse_reply_xattr, value.size());
  } else if (value.size() > size) {
    request.error(ERANGE);
  } else {
    request.answer(fuse_reply_buf, value.data(), value.size());
  }
}

void op_setxattr(fuse_req_t req, fuse_ino_t inode, const char* name, const char* value, size_t size, int flags) {
  const Request request(req, Operation::setxattr, inode);
  if (is_unsupported(name)) return request.error(EOPNOTSUPP);
  const std::string content(value, size);
  if (is_control(name)) {
    ControlXattrs(request.fs())
        .set(inode, control_name(name), content, request.peer(),
             [request](const Result<>& result) { request.result(result); });
    return;
  }
  request.result(request.fs().tree.set_xattr(inode, name, content, flags));
}

// Does the value depend on who asks? For the others the caller's groups are not read.
bool depends_on_caller(std::string_view control) {
  return control == "source" || control == "last_error" || control == "identical_to";
}

// Does it take an inspection of a step's files, of which there may be many?
bool inspects_steps(std::string_view control) { return control == "state" || control == "identical_to"; }

void answer_control(const Request& request, const std::string& name, size_t size) {
  const auto value =
      ControlXattrs(request.fs()).get(request.inode(), name, depends_on_caller(name) ? request.peer() : Peer());
  if (!value) return request.error(value.error());
  answer(request, value.value(), size);
}

// Finds a value that takes long on a thread of its own. A caller who asks for the length alone gets an upper bound at
// once.
void answer_slow_control(const Request& request, const std::string& name, size_t size) {
  if (size == 0) {
    const auto longest = ControlXattrs(request.fs()).longest(request.inode(), name);
    if (!longest) return request.error(longest.error());
    request.answer(fuse_reply_xattr, longest.value());
    return;
  }
  const auto value = ControlXattrs(request.fs()).get_quickly(request.inode(), name);
  if (!value) return request.error(value.error());
  if (value.value()) return answer(request, *value.value(), size);
  const auto started = request.fs().tasks.start([request, name, size] { answer_control(request, name, size); });
  if (!started) request.error(started.error());
}

void op_getxattr(fuse_req_t req, fuse_ino_t inode, const char* name, size_t size) {
  const Request request(req, Operation::getxattr, inode);
  if (is_unsupported(name)) return request.error(EOPNOTSUPP);
  if (is_control(name)) {
    const std::string control = control_name(name);
    if (inspects_steps(control)) {
      const auto work = [request, control, size] { answer_control(request, control, size); };
      const auto started = request.fs().lanes.start(request.caller().uid, work);
      return started ? void() : request.error(started.error());
    }
    return (ControlXattrs::is_slow(control) ? answer_slow_control : answer_control)(request, control, size);
  }
  const auto value = request.fs().tree.xattr(inode, name);
  if (!value) return request.error(value.error());
  answer(request, value.value(), size);
}

void op_listxattr(fuse_req_t req, fuse_ino_t inode, size_t size) {
  const Request request(req, Operation::listxattr, inode);
  const auto names = request.fs().tree.list_xattrs(inode);
  if (!names) return request.error(names.error());
  const bool may_see_all = request.caller().uid == 0;
  std::string list;
  for (const std::string& name : names.value()) {
    if (may_see_all || !is_trusted(name)) list.append(name).push_back('\0');
  }
  answer(request, list, size);
}

void op_removexattr(fuse_req_t req, fuse_ino_t inode, const char* name) {
  const Request request(req, Operation::removexattr, inode);
  if (is_control(name)) {
    return ControlXattrs(request.fs())
        .remove(inode, control_name(name), request.peer(),
                [request](const Result<>& result) { request.result(result); });
  }
  const auto removed = request.fs().tree.remove_xattr(inode, name);  // earlier versions took any name
  if (!removed && is_unsupported(name)) return request.error(EOPNOTSUPP);
  request.result(removed);
}

}  // namespace

void add_xattr_operations(fuse_lowlevel_ops& ops) {
  ops.setxattr = op_setxattr;
  ops.getxattr = op_getxattr;
  ops.listxattr = op_listxattr;
  ops.removexattr = op_removexattr;
}

}  // namespace ckptfs::fs
