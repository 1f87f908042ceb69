// A request of the kernel to a remote mount, its answer, and what it asks for: at once if that is known, else later,
// from another thread.
//
// Thread safety: a value; whoever answers later keeps a copy. One answer counts, also against an interrupt.
#pragma once

#include <fuse_lowlevel.h>

#include <chrono>
#include <memory>
#include <string>

#include "fs/open/permission.h"
#include "fs/remote_mount/parts.h"
#include "fs/remote_mount/places.h"

namespace ckptfs::fs::remote_mount {

class RemoteRequest {
 public:
  RemoteRequest(fuse_req_t request, fuse_ino_t inode)
      : parts_(static_cast<Parts*>(fuse_req_userdata(request))),
        place_(place_of(inode)),
        inode_(inode),
        uid_(fuse_req_ctx(request)->uid),
        entry_(std::make_shared<Unanswered::Entry>()) {
    entry_->request = request;
    entry_->thread = fuse_req_ctx(request)->pid;
    ++parts_->requests;
  }

  Parts& parts() const { return *parts_; }
  const Place& place() const { return place_; }
  InodeNumber inode() const { return inode_; }
  uint32_t uid() const { return uid_; }
  // With the groups, if they are asked for below (may_enter). To be called first: an interrupt may answer the request.
  Credentials caller() const;

  void become_interruptible() const;
  // Before that.
  void reads() const { entry_->reads = true; }
  // Returns whether the kernel took the answer.
  template <class Send>
  bool answer(const Send& send) const {
    if (entry_->answered.exchange(true)) return false;
    if (entry_->number != 0) parts_->unanswered.remove(entry_->number);
    return send(entry_->request) == 0;
  }
  void error(int errno_value) const {
    answer([&](fuse_req_t request) { return fuse_reply_err(request, errno_value); });
  }
  // What the remote says is EIO to the kernel, and never "there is none". The words are in the log and in the status.
  void failed(const Error& error) const;
  // Runs `work` with the time that the request has, on a lane of the user's.
  template <class Work>
  void later(Work work) const {
    become_interruptible();
    const io::RequestLimits limits = parts_->limits();
    const auto started = parts_->lanes.start(uid_, [request = *this, work, limits] {
      if (request.entry_->answered) return;  // it was interrupted meanwhile
      if (std::chrono::steady_clock::now() > limits.deadline) {
        return request.failed(Error(ETIMEDOUT, "other requests of this user took all the time"));
      }
      work(limits);
    });
    if (!started) failed(started.error());
  }

 private:
  Parts* parts_;
  Place place_;
  InodeNumber inode_;
  uint32_t uid_;
  std::shared_ptr<Unanswered::Entry> entry_;
};

template <class Then>
void with_step(const RemoteRequest& request, uint32_t number, Then then) {
  if (const auto known = request.parts().catalog->known_step(number)) return then(known);
  request.later([request, number, then](const io::RequestLimits& limits) {
    const auto opened = request.parts().catalog->open(number, limits);
    opened ? then(opened.value()) : request.failed(opened.error());
  });
}

template <class Then>
void with_view(const RemoteRequest& request, uint32_t number, Then then) {
  if (const auto known = request.parts().catalog->known_view(number)) return then(known);
  request.later([request, number, then](const io::RequestLimits& limits) {
    const auto made = request.parts().catalog->view(number, limits);
    made ? then(made.value()) : request.failed(made.error());
  });
}

// `then` takes the list of steps. `name`: a known list that has this step is good enough; empty: a recent one.
template <class Then>
void with_list(const RemoteRequest& request, const std::string& name, Then then) {
  Catalog& catalog = *request.parts().catalog;
  const auto recent = catalog.known_list(Catalog::kRecent);
  if (recent) return then(*recent);
  const auto known = name.empty() ? nullptr : catalog.known_list(std::chrono::minutes(1));
  if (known && known->find(name) != nullptr) return then(*known);
  request.later([request, then](const io::RequestLimits& limits) {
    const auto listed = request.parts().catalog->list(limits);
    listed ? then(*listed.value()) : request.failed(listed.error());
  });
}

}  // namespace ckptfs::fs::remote_mount
