#include "fs/ops/request.h"

#include <cerrno>
#include <vector>

#include "io/log.h"

namespace ckptfs::fs {

Request::Request(fuse_req_t request, Operation operation, meta::InodeNumber inode, std::string name)
    : request_(request),
      fs_(static_cast<Filesystem*>(fuse_req_userdata(request))),
      operation_(operation),
      inode_(inode),
      name_(std::move(name)) {
  fs().counters.count(operation);
}

meta::Caller Request::caller() const {
  const fuse_ctx* context = fuse_req_ctx(request_);
  return {context->uid, context->gid, context->pid};
}

Peer Request::peer() const {
  const fuse_ctx* context = fuse_req_ctx(request_);
  Peer peer{{context->uid, context->gid, {}}, context->pid};
  if (context->pid == 0) return peer;  // in another pid namespace, so that its groups cannot be read
  std::vector<gid_t> groups(64);
  for (;;) {
    const int count = fuse_req_getgroups(request_, static_cast<int>(groups.size()), groups.data());
    if (count < 0) return peer;
    const bool all = static_cast<size_t>(count) <= groups.size();
    groups.resize(static_cast<size_t>(count));
    if (all) break;
  }
  peer.credentials.groups.assign(groups.begin(), groups.end());
  return peer;
}

void Request::error(const Error& error) const {
  log(error);
  refuse(error);
}

void Request::logged_error(const Error& error) const {
  add(fs().counters.failed[static_cast<size_t>(operation_)]);
  refuse(error);
}

void Request::refuse(const Error& error) const {
  const int value = error.errno_value();
  answer(fuse_reply_err, value > 0 ? value : EIO);
}

void Request::log(const Error& error) const {
  const char* operation = kOperationNames[static_cast<size_t>(operation_)];
  switch (error.errno_value()) {
    // Programs get these all day.
    case ENOENT:
    case EEXIST:
    case ENODATA:
    case ERANGE:
    case ENOTEMPTY:
    case ENOTDIR:
    case EISDIR:
    case EOPNOTSUPP:
    case ENOTTY:
    case ENXIO:
    case EINVAL:
    case EMLINK:
    case ENAMETOOLONG:
    case EAGAIN:
      log::debug("{} {} {}: {}", operation, inode_, name_, error.message());
      return;
    default:
      break;
  }
  const int number = error.errno_value();
  const bool refused = number == EPERM || number == EBUSY || number == EACCES || number == EROFS || number == ESTALE ||
                       number == EMFILE || number == ENFILE;
  if (!refused) add(fs().counters.failed[static_cast<size_t>(operation_)]);
  const uint32_t user = caller().uid;
  const auto left_out = fs().log_limit.claim(user);
  if (!left_out) return;
  if (*left_out > 0) log::info("of user {}: {} more requests that failed or were refused", user, *left_out);
  std::string path = fs().tree.path_of(inode_);
  if (!name_.empty()) path += (path.empty() || path.back() != '/' ? "/" : "") + name_;
  if (refused) {
    log::info("{} {} refused: {}", operation, path, error.message());
  } else {
    log::error("{} {} failed: {}", operation, path, error.message());
  }
}

void Request::result(const Result<>& result) const {
  if (result) {
    ok();
  } else {
    error(result.error());
  }
}

void Request::entry(const meta::Attributes& attributes) const {
  Filesystem& filesystem = fs();
  const fuse_entry_param entry = filesystem.entry_of(attributes);
  filesystem.files.add_lookup(entry.ino, name_);
  // The request was interrupted: the kernel took no reference.
  if (answer(fuse_reply_entry, &entry) != 0) filesystem.files.forget(entry.ino, 1);
}

void Request::attributes(const meta::Attributes& attributes) const {
  answer(fuse_reply_attr, &attributes.stat, fs().attribute_timeout(attributes));
}

int Request::data(std::span<const std::byte> data) const {
  return answer(fuse_reply_buf, reinterpret_cast<const char*>(data.data()), data.size());
}

}  // namespace ckptfs::fs
