// An operation's request and its answer to the kernel. Only here an Error becomes an errno. Errors that a person should
// know of are logged with operation, path and words. Here, too, each request is counted and timed. A test compares the
// number of requests with the number of answers, so an answer that bypasses Request shows.
//
// A Request is a value: an operation that has to wait at the gate keeps a copy for when it begins anew. Exactly one of
// the answering members is called for each request, with no lock held.
#pragma once

#include <array>
#include <chrono>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fs/open/peer.h"
#include "fs/ops/filesystem.h"
#include "io/log.h"

namespace ckptfs::fs {

class Request {
 public:
  // `inode` and `name` say what the request is about: a file, or a name in a directory.
  Request(fuse_req_t request, Operation operation, meta::InodeNumber inode, std::string name = {});

  Filesystem& fs() const { return *fs_; }
  // Gone once the request is answered; everything else here stays.
  fuse_req_t fuse_request() const { return request_; }
  meta::InodeNumber inode() const { return inode_; }
  const std::string& name() const { return name_; }
  meta::Caller caller() const;
  // The caller with the supplementary groups, which are read from /proc. To be called before the request is answered.
  Peer peer() const;

  void error(const Error& error) const;
  void error(int errno_value) const { error(Error(errno_value)); }
  // As error, for what WriteErrors::failed has logged (once; a full disk fails thousands of writes).
  void logged_error(const Error& error) const;
  void ok() const { answer(fuse_reply_err, 0); }
  void result(const Result<>& result) const;
  // Counts a lookup of it.
  void entry(const meta::Attributes& attributes) const;
  void attributes(const meta::Attributes& attributes) const;
  int data(std::span<const std::byte> data) const;
  // Answers by one of libfuse's fuse_reply_*, and returns what that returns: not 0 if nobody waits for the answer any
  // more.
  template <class... Expected, class... Given>
  int answer(int (*send)(fuse_req_t, Expected...), Given... given) const {
    const int sent = send(request_, static_cast<Expected>(given)...);
    fs_->counters.latency[static_cast<size_t>(operation_)].add(std::chrono::steady_clock::now() - began_);
    return sent;
  }

 private:
  void log(const Error& error) const;
  void refuse(const Error& error) const;

  fuse_req_t request_;
  Filesystem* fs_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  Operation operation_;
  meta::InodeNumber inode_;
  std::string name_;
};

// Runs `work`, which answers the request, with a pass of the gate for `inodes`; or parks it until the gate opens. While
// a request is parked, the kernel is not told of names in its folders (fs/kernel/notifications.h).
template <class Work>
void through_gate(Filesystem& fs, std::array<meta::InodeNumber, 2> inodes, Work work) {
  const auto pass = fs.tree.gate().enter({inodes[0], inodes[1]}, [&fs, inodes, work] {
    through_gate(fs, inodes, work);
    for (const meta::InodeNumber inode : inodes) fs.notifications.release(inode);
  });
  if (pass) return work();
  for (const meta::InodeNumber inode : inodes) fs.notifications.hold(inode);
}
template <class Work>
void through_gate(Filesystem& fs, meta::InodeNumber inode, Work work) {
  through_gate(fs, std::array<meta::InodeNumber, 2>{inode, inode}, std::move(work));
}

// Runs `work`, which waits for the disk and answers the request. A slow disk must not hold up all that serve requests.
// So only a few syncs are done here; a further one is done on a thread of the user's, which takes some 40 us to start.
template <class Work>
void sync_and_answer(const Request& request, Work work) {
  constexpr unsigned kHere = 2;  // of at least 8 threads
  Filesystem& fs = request.fs();
  const bool here = fs.syncs_here.fetch_add(1) < kHere;
  const auto started = here ? Result<>(success()) : fs.syncs.start(request.caller().uid, work);
  if (!started) log::warn("a sync holds up other requests: {}", started.error().message());
  if (here || !started) work();
  fs.syncs_here.fetch_sub(1);
}

// Runs `work`, which answers the request, once these steps of the series are set aside, or are known to stay.
template <class Work>
void once_settled(Filesystem& fs, meta::InodeNumber series, const std::vector<meta::InodeNumber>& steps, uint32_t user,
                  Work work) {
  fs.notifications.hold(series);
  fs.set_aside.settle(steps, user, [&fs, series, work] {
    work();
    fs.notifications.release(series);
  });
}

}  // namespace ckptfs::fs
