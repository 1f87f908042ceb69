#include "fs/ops/control_xattrs.h"

#include <cerrno>
#include <limits>

#include "fs/open/walk.h"
#include "fs/remote/save_order.h"
#include "meta/accounting/accounting.h"
#include "meta/names.h"
#include "meta/steps/ledger.h"
#include "meta/steps/policy.h"
#include "meta/steps/source.h"
#include "meta/steps/steps.h"

namespace ckptfs::fs {

namespace {

constexpr std::string_view kMetric = "metric.";
constexpr std::string_view kWhole = "whole";
constexpr std::string_view kAttempt = "attempt";
constexpr std::string_view kRemote = "remote.";

Error unknown(const std::string& name) {
  return Error(EOPNOTSUPP, std::string(ControlXattrs::kPrefix) + name + ": no such control");
}

// Takes the mountpoint off a path that begins with it. Other paths count from the mount's root.
std::string inside_mount(const std::string& path, const std::string& mountpoint) {
  if (path == mountpoint) return "/";
  if (path.starts_with(mountpoint + "/")) return path.substr(mountpoint.size());
  return path;
}

// What a user tells of a step.
bool is_of_step(const std::string& name) { return name == kWhole || name.starts_with(kMetric); }

Result<bool> parse_flag(const std::string& value) {
  if (value == "1") return true;
  if (value == "0") return false;
  return Error(EINVAL, "the value is 0 or 1");
}

std::string bytes_of(const meta::Usage& usage, const std::string& name) {
  if (name == "bytes.apparent") return std::to_string(usage.apparent);
  return std::to_string(name == "bytes.exclusive" ? usage.exclusive : usage.shared);
}

}  // namespace

Result<std::string> ControlXattrs::get(meta::InodeNumber inode, const std::string& name, const Peer& peer) const {
  if (name == "save") return Error(ENODATA);
  if (name == "socket") {
    if (inode != meta::kRootInode) return Error(ENODATA);
    return fs_->socket_path;
  }
  if (name == "source") return source(inode, peer);
  if (name == "last_error") {
    if (auto words = fs_->last_errors.of(inode, peer.credentials.uid)) return *std::move(words);
    return Error(ENODATA);
  }
  if (name == "write_error") {
    if (auto text = fs_->write_errors.last(inode)) return *std::move(text);
    TRY_ASSIGN(const meta::InodeRecord record, fs_->tree.inode(inode));
    const auto suspect = record.is_regular() ? fs_->tree.write_back().check(record.blob) : success();
    return suspect ? Error(ENODATA) : Result<std::string>(suspect.error().message());
  }
  if (name == "seal" || name == "pin") {
    TRY_ASSIGN(const auto step, fs_->store.index().find_step(inode));
    const bool set = step && (name == "seal" ? step->sealed : step->pinned);
    return std::string(set ? "1" : "0");
  }
  if (name == kWhole) return fs_->tree.xattr(inode, meta::kWholeXattr);
  if (name == kAttempt) {
    TRY_ASSIGN(const auto ledger, meta::ledger_of(fs_->store, inode));
    return ledger.agreed ? ledger.agreed->id : Result<std::string>(Error(ENODATA));
  }
  if (name == "state") return state(inode);
  if (name.starts_with(kRemote)) return remote(inode, name.substr(kRemote.size()));
  if (meta::is_policy_rule(name)) return rule(inode, name);
  if (name.starts_with(kMetric)) return fs_->tree.xattr(inode, std::string(kPrefix) + name);
  if (name == "identical_to") return identical_to(inode, peer);
  if (name.starts_with(kBytes)) return bytes(inode, name);
  return unknown(name);
}

Result<std::string> ControlXattrs::source(meta::InodeNumber series, const Peer& peer) const {
  TRY_ASSIGN(const auto source, meta::save_source(fs_->store, series, peer.credentials));
  return fs_->tree.path_of(source);
}

Result<std::optional<std::string>> ControlXattrs::get_quickly(meta::InodeNumber inode, const std::string& name) const {
  TRY(longest(inode, name));
  TRY_ASSIGN(const meta::InodeRecord record, fs_->tree.inode(inode));
  if (!record.is_regular()) return std::optional<std::string>();
  TRY_ASSIGN(const auto usage, fs_->store.accounting().usage_from_own_extents(inode));
  if (!usage) return std::optional<std::string>();
  // Blocks that are flagged as shared may be shared with a view only. Such blocks count as this file's alone.
  const bool sure = name == "bytes.apparent" || usage->shared == 0 || !fs_->view_files.have_shared();
  return sure ? std::optional(bytes_of(*usage, name)) : std::nullopt;
}

Result<std::string> ControlXattrs::bytes(meta::InodeNumber inode, const std::string& name) const {
  TRY(longest(inode, name));
  TRY_ASSIGN(const meta::Account account, fs_->store.accounting().account({{{inode}, 0}}));
  return bytes_of(account.owners.front(), name);
}

Result<size_t> ControlXattrs::longest(meta::InodeNumber inode, const std::string& name) const {
  constexpr size_t kDigits = std::numeric_limits<uint64_t>::digits10 + 1;
  if (name != "bytes.apparent" && name != "bytes.exclusive" && name != "bytes.shared") return unknown(name);
  TRY_ASSIGN(const meta::InodeRecord record, fs_->tree.inode(inode));
  if (record.is_regular() || (record.flags & meta::kSeries) != 0) return kDigits;
  TRY_ASSIGN(const bool step, meta::is_step(fs_->tree, inode));
  if (step) return kDigits;
  return Error(ENODATA);
}

Result<std::string> ControlXattrs::state(meta::InodeNumber inode) const {
  TRY_ASSIGN(const meta::InodeRecord record, fs_->tree.inode(inode));
  if (record.is_regular()) {
    if (fs_->tree.is_damaged(inode)) return std::string("damaged");
    if (!fs_->tree.write_back().check(record.blob)) return std::string("suspect");
    return std::string((record.flags & meta::kFrozen) != 0 ? "frozen" : "live");
  }
  const auto status = fs_->step_facts.inspect_step(inode);
  if (!status) return Error(ENODATA);
  return std::string(state_of(status.value()));
}

// Of a step of a series with a remote.
Result<std::string> ControlXattrs::remote(meta::InodeNumber step, const std::string& what) const {
  if (what != "state" && what != "error") return unknown(std::string(kRemote) + what);
  TRY_ASSIGN(const meta::InodeRecord record, fs_->tree.inode(step));
  if (!record.is_dir() || !fs_->pushes.has_remote(record.parent)) return Error(ENODATA);
  const auto known = fs_->pushes.of(step);
  const PushState state = known.value_or(PushState());
  if (what == "state") return state.text();
  std::string error = fs_->remotes.error_of(record.parent, state);
  if (error.empty() && state.is_settled()) error = state.waits_for;
  return error.empty() ? Result<std::string>(Error(ENODATA)) : error;
}

Result<std::string> ControlXattrs::rule(meta::InodeNumber series, const std::string& name) const {
  TRY_ASSIGN(const meta::SeriesPolicy policy, meta::policy_of(fs_->store, series));
  const auto set = policy.set.find(name);
  if (set == policy.set.end()) return Error(ENODATA);
  return set->second;
}

// A sealed step may get a metric, too, since its files do not change.
Result<> ControlXattrs::set_of_step(meta::InodeNumber step, const std::string& name, const std::string& value) const {
  TRY_ASSIGN(const bool is_step, meta::is_step(fs_->tree, step));
  if (!is_step)
    return Error(EINVAL, fs_->tree.path_of(step) + ": it is no step; " + name + " is of a step of a series");
  if (name == kMetric) return Error(EINVAL, "a metric has a name: user.ckptfs.metric.NAME");
  if (name == kWhole && !value.empty() && value != "1")
    return Error(EINVAL, "the value is 1; setfattr -x takes it away");
  if (name != kWhole && !value.empty() && !meta::parse_metric(value))
    return Error(EINVAL, "'" + value + "' is no number");
  TRY(meta::set_control_xattr(fs_->store, step, std::string(kPrefix) + name, value));
  fs_->rotation.wake();
  return fs_->tree.sync();
}

// Of a step, or of a folder in it, as a Trainer lets DeepSpeed write.
Result<> ControlXattrs::set_attempt(meta::InodeNumber inode, const std::string& word) const {
  TRY_ASSIGN(const auto place, meta::place_of(fs_->tree, inode));
  if (!place) return Error(EINVAL, fs_->tree.path_of(inode) + ": it is no step; attempt is of a step of a series");
  TRY(meta::check_attempt(word));
  TRY(note_agreed(fs_->store, place->step, word));
  return fs_->tree.sync();
}

// Of a step: the name of the step made before it, if all tensors of both are the same. Of a file in a step: that name,
// if both steps have the same file. Only a caller who may read both is told.
Result<std::string> ControlXattrs::identical_to(meta::InodeNumber inode, const Peer& peer) const {
  TRY_ASSIGN(const auto place, meta::place_of(fs_->tree, inode));
  if (!place) return Error(ENODATA);
  TRY_ASSIGN(const auto steps, meta::neighbours(fs_->tree, place->series, place->step));
  if (!steps.before) return Error(ENODATA);
  TRY_ASSIGN(const meta::Sameness sameness, sameness_with(*place, inode, *steps.before, peer));
  if (sameness != meta::Sameness::same) return Error(ENODATA);
  return meta::name_of(fs_->tree, *steps.before);
}

Result<meta::Sameness> ControlXattrs::sameness_with(const meta::Place& place, meta::InodeNumber inode,
                                                    meta::InodeNumber before, const Peer& peer) const {
  const auto may_read_all = [&](meta::InodeNumber top) {
    return files_below(fs_->tree, peer.credentials, top, "", kRead).has_value();
  };
  TRY_ASSIGN(const bool may_reach_it, meta::may_reach(fs_->tree, peer.credentials, before, kSearch));
  if (!may_reach_it || !may_read_all(inode)) return meta::Sameness::unknown;
  if (place.path.empty() && !may_read_all(before)) return meta::Sameness::unknown;
  if (place.path.empty()) return meta::compare_tensors(fs_->store, inode, before);
  const auto other = meta::file_at(fs_->tree, before, place.path);
  if (!other) return meta::Sameness::different;
  TRY_ASSIGN(const bool may_read_other, meta::may_reach(fs_->tree, peer.credentials, *other, kRead));
  if (!may_read_other) return meta::Sameness::unknown;
  return meta::compare_files(fs_->store, inode, *other);
}

void ControlXattrs::in_background(meta::InodeNumber inode, const Peer& peer,
                                  const std::function<void(const Result<>&)>& done,
                                  std::function<Result<>()> work) const {
  // The kernel holds the inode's lock until this is answered.
  fs_->notifications.hold(inode);
  const auto started = fs_->tasks.start([fs = fs_, inode, peer, done, work = std::move(work)] {
    const Result<> result = work();
    fs->last_errors.remember(inode, peer.credentials.uid, result);
    done(result);
    fs->notifications.release(inode);
  });
  if (started) return;
  done(started.error());
  fs_->notifications.release(inode);
}

void ControlXattrs::remove(meta::InodeNumber inode, const std::string& name, const Peer& peer,
                           const std::function<void(const Result<>&)>& done) const {
  if (!meta::is_policy_rule(name) && !is_of_step(name)) {
    return done(Error(EOPNOTSUPP, std::string(kPrefix) + name + ": it cannot be taken away"));
  }
  in_background(inode, peer, done, [self = *this, inode, name, peer]() -> Result<> {
    TRY(self.get(inode, name, peer));
    if (is_of_step(name)) return self.set_of_step(inode, name, "");
    TRY(meta::set_rules(self.fs_->store, inode, {{name, ""}}, peer.credentials));
    TRY(self.fs_->set_aside.read_rule(inode));
    self.fs_->look_again();
    return success();
  });
}

void ControlXattrs::set(meta::InodeNumber inode, const std::string& name, const std::string& value, const Peer& peer,
                        const std::function<void(const Result<>&)>& done) const {
  if (name == "save") {
    in_background(inode, peer, done, [self = *this, inode, value, peer]() -> Result<> {
      TRY(self.fs_->saver.save(inode, value, peer));
      return success();
    });
  } else if (name == "seal") {
    in_background(inode, peer, done, [self = *this, inode, value, peer]() -> Result<> {
      if (value != "1") return Error(EINVAL, "a seal is for good: the value is 1");
      return self.seal_as(inode, peer);
    });
  } else if (name == "pin") {
    in_background(inode, peer, done, [self = *this, inode, value]() -> Result<> {
      TRY_ASSIGN(const bool pinned, parse_flag(value));
      return meta::set_pinned(self.fs_->store, inode, pinned);
    });
  } else if (name == kAttempt) {
    in_background(inode, peer, done, [self = *this, inode, value] { return self.set_attempt(inode, value); });
  } else if (name == "source" || meta::is_policy_rule(name) || is_of_step(name)) {
    in_background(inode, peer, done, [self = *this, inode, name, value, peer]() -> Result<> {
      if (name == "source") return self.set_source(inode, value, peer);
      if (is_of_step(name)) return self.set_of_step(inode, name, value);
      if (value.empty()) return Error(EINVAL, name + ": it has no value; setfattr -x takes a rule away");
      TRY(meta::set_rules(self.fs_->store, inode, {{name, value}}, peer.credentials));
      TRY(self.fs_->set_aside.read_rule(inode));
      self.fs_->look_again();
      return success();
    });
  } else {
    done(unknown(name));
  }
}

Result<> ControlXattrs::set_source(meta::InodeNumber series, const std::string& path, const Peer& peer) const {
  TRY_ASSIGN(const meta::InodeNumber source,
             resolve_as(fs_->tree, peer.credentials, inside_mount(path, fs_->options.mountpoint), kRead | kSearch));
  return meta::set_source(fs_->store, series, source);
}

Result<> ControlXattrs::seal_as(meta::InodeNumber step, const Peer& peer) const {
  TRY_ASSIGN(const meta::InodeRecord record, fs_->tree.inode(step));
  if (peer.credentials.uid == 0 || peer.credentials.uid == record.uid) return fs_->saver.seal(step);
  return Error(EPERM, fs_->tree.path_of(step) + ": only its owner (uid " + std::to_string(record.uid) +
                          ") or root seals a step");
}

}  // namespace ckptfs::fs
