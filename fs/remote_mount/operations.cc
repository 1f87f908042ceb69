#include "fs/remote_mount/operations.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <string_view>

#include "fs/remote_mount/request.h"
#include "io/log.h"

namespace ckptfs::fs::remote_mount {

namespace {

constexpr unsigned long kSpaceUnit = 1 << 20;
constexpr const char* kSocketXattr = "user.ckptfs.socket";

void op_statfs(fuse_req_t req, fuse_ino_t inode) {
  const RemoteRequest request(req, inode);
  struct statvfs space {};
  space.f_bsize = space.f_frsize = kSpaceUnit;
  space.f_namemax = 255;
  space.f_flag = ST_RDONLY;
  request.answer([&](fuse_req_t answered) { return fuse_reply_statfs(answered, &space); });
}

void op_getxattr(fuse_req_t req, fuse_ino_t inode, const char* name, size_t size) {
  const RemoteRequest request(req, inode);
  const std::string& socket = request.parts().socket;
  if (inode != kRoot || std::string_view(name) != kSocketXattr) return request.error(ENODATA);
  if (size != 0 && size < socket.size()) return request.error(ERANGE);
  request.answer([&](fuse_req_t answered) {
    return size == 0 ? fuse_reply_xattr(answered, socket.size())
                     : fuse_reply_buf(answered, socket.data(), socket.size());
  });
}

void op_listxattr(fuse_req_t req, fuse_ino_t inode, size_t size) {
  const RemoteRequest request(req, inode);
  request.answer([&](fuse_req_t answered) {
    return size == 0 ? fuse_reply_xattr(answered, 0) : fuse_reply_buf(answered, nullptr, 0);
  });
}

// What the kernel remembers needs nothing of the daemon: a number tells all.
void op_forget(fuse_req_t req, fuse_ino_t, uint64_t) { fuse_reply_none(req); }

void op_init(void* user_data, fuse_conn_info* connection) {
  constexpr unsigned kLargestRead = 1U << 20;
  for (const uint64_t wanted : {uint64_t{FUSE_CAP_ASYNC_READ}, uint64_t{FUSE_CAP_PARALLEL_DIROPS},
                                uint64_t{FUSE_CAP_ASYNC_DIO}, uint64_t{FUSE_CAP_NO_EXPORT_SUPPORT}}) {
    if (!fuse_set_feature_flag(connection, wanted)) log::warn("the kernel lacks FUSE capability {:#x}", wanted);
  }
  for (const uint64_t unwanted : {uint64_t{FUSE_CAP_AUTO_INVAL_DATA}, uint64_t{FUSE_CAP_READDIRPLUS},
                                  uint64_t{FUSE_CAP_SPLICE_READ}, uint64_t{FUSE_CAP_EXPORT_SUPPORT}}) {
    fuse_unset_feature_flag(connection, unwanted);
  }
  connection->max_write = kLargestRead;  // the largest READ has as many pages
  connection->max_background = 128;
  connection->congestion_threshold = 96;
  fuse_session_exit(static_cast<Parts*>(user_data)->session->get());  // Session::mount answers this one request only
}

}  // namespace

void add_operations(fuse_lowlevel_ops& ops) {
  add_name_operations(ops);
  add_file_operations(ops);
  ops.init = op_init;
  ops.forget = op_forget;
  ops.statfs = op_statfs;
  ops.getxattr = op_getxattr;
  ops.listxattr = op_listxattr;
}

}  // namespace ckptfs::fs::remote_mount
