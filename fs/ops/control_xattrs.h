// The xattrs user.ckptfs.*: control of series and steps from a shell or any language (docs/control.md). None is listed,
// so that no copy carries one away; a name that is not known is EOPNOTSUPP.
//
// Thread safety: all of it; holds nothing, and is copied freely.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "fs/open/peer.h"
#include "fs/ops/filesystem.h"
#include "io/result.h"
#include "meta/care/neighbours.h"
#include "meta/types.h"

namespace ckptfs::fs {

class ControlXattrs {
 public:
  static constexpr std::string_view kPrefix = "user.ckptfs.";
  static constexpr std::string_view kBytes = "bytes.";
  explicit ControlXattrs(Filesystem& fs) : fs_(&fs) {}

  // bytes.*: what the disk tells, which may take a while. Where get_quickly() has none, get() is to be called on a
  // thread of its own.
  static bool is_slow(std::string_view name) { return name.starts_with(kBytes); }
  Result<std::optional<std::string>> get_quickly(meta::InodeNumber inode, const std::string& name) const;
  // An upper bound of what get() will return, for a slow one.
  Result<size_t> longest(meta::InodeNumber inode, const std::string& name) const;
  // `name` is what follows kPrefix. That `peer` may read the inode the kernel has checked; what lies elsewhere is asked
  // for here.
  Result<std::string> get(meta::InodeNumber inode, const std::string& name, const Peer& peer) const;
  // Sets it; `done` is called once, perhaps on another thread and much later (a save, a seal). Likewise.
  void set(meta::InodeNumber inode, const std::string& name, const std::string& value, const Peer& peer,
           const std::function<void(const Result<>&)>& done) const;

  // Takes away a rule of a policy, or a metric; others are EOPNOTSUPP.
  void remove(meta::InodeNumber inode, const std::string& name, const Peer& peer,
              const std::function<void(const Result<>&)>& done) const;

 private:
  // `work` on a thread of its own; its outcome is kept for last_error.
  void in_background(meta::InodeNumber inode, const Peer& peer, const std::function<void(const Result<>&)>& done,
                     std::function<Result<>()> work) const;
  Result<std::string> source(meta::InodeNumber series, const Peer& peer) const;
  Result<> set_source(meta::InodeNumber series, const std::string& path, const Peer& peer) const;
  // As Saver::seal(), for its owner and for root: it takes from others what they may write there, for good.
  Result<> seal_as(meta::InodeNumber step, const Peer& peer) const;
  Result<> set_attempt(meta::InodeNumber inode, const std::string& word) const;
  // metric.NAME or whole; an empty value takes it away.
  Result<> set_of_step(meta::InodeNumber step, const std::string& name, const std::string& value) const;
  Result<std::string> remote(meta::InodeNumber step, const std::string& what) const;
  Result<std::string> rule(meta::InodeNumber series, const std::string& name) const;
  Result<std::string> identical_to(meta::InodeNumber inode, const Peer& peer) const;
  Result<meta::Sameness> sameness_with(const meta::Place& place, meta::InodeNumber inode, meta::InodeNumber before,
                                       const Peer& peer) const;
  Result<std::string> state(meta::InodeNumber inode) const;
  Result<std::string> bytes(meta::InodeNumber inode, const std::string& name) const;

  Filesystem* fs_;
};

}  // namespace ckptfs::fs
