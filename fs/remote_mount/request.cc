#include "fs/remote_mount/request.h"

#include <algorithm>
#include <cerrno>

#include "io/log.h"

namespace ckptfs::fs::remote_mount {
namespace {

constexpr int kMostGroups = 1024;

void on_interrupt(fuse_req_t request, void* number) {
  static_cast<Parts*>(fuse_req_userdata(request))->unanswered.interrupt(reinterpret_cast<uint64_t>(number));
}

}  // namespace

Credentials RemoteRequest::caller() const {
  Credentials who{uid_, fuse_req_ctx(entry_->request)->gid};
  if (place_.index != 0 || parts_->ownership.only || uid_ == 0) return who;
  who.groups.resize(kMostGroups);
  const int count = fuse_req_getgroups(entry_->request, kMostGroups, who.groups.data());
  who.groups.resize(static_cast<size_t>(std::clamp(count, 0, kMostGroups)));
  return who;
}

void RemoteRequest::become_interruptible() const {
  if (entry_->number == 0) parts_->unanswered.add(entry_, on_interrupt);
}

void RemoteRequest::failed(const Error& error) const {
  ++parts_->errors;
  if (!parts_->stop && parts_->failures.is_new(error.message())) log::warn("{}", error.message());
  this->error(EIO);
}

}  // namespace ckptfs::fs::remote_mount
