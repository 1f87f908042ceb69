#include "fs/remote_mount/attributes.h"

#include <algorithm>

#include "meta/tree/access.h"

namespace ckptfs::fs::remote_mount {

using meta::remote::Entry;
using views::View;

namespace {

constexpr blksize_t kBlock = 1 << 20;

struct stat new_stat(InodeNumber inode, mode_t mode, const views::Access& access, uint64_t size, const timespec& time) {
  struct stat st {};
  st.st_ino = inode;
  st.st_mode = mode | access.mode;
  st.st_nlink = S_ISDIR(mode) ? 2 : 1;
  st.st_uid = access.uid;
  st.st_gid = access.gid;
  st.st_size = static_cast<off_t>(size);
  st.st_blksize = kBlock;
  st.st_blocks = static_cast<blkcnt_t>((size + 511) / 512);
  st.st_mtim = st.st_ctim = st.st_atim = time;
  return st;
}

timespec time_of(std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return {seconds.count(), static_cast<long>(std::chrono::nanoseconds(since - seconds).count())};
}

}  // namespace

struct stat stat_of_top(const Parts& parts, InodeNumber inode) {
  return new_stat(inode, S_IFDIR, {parts.uid, parts.gid, 0555}, 0, parts.mounted);
}

struct stat stat_of_step(const Parts& parts, const Place& place, const meta::remote::CommittedStep& step) {
  return new_stat(number_of(place), S_IFDIR, {parts.uid, parts.gid, 0555}, 0, time_of(step.committed));
}

mode_t type_of(Entry::Kind kind) {
  return kind == Entry::Kind::folder ? S_IFDIR : kind == Entry::Kind::link ? S_IFLNK : S_IFREG;
}

struct stat stat_of_entry(const Parts& parts, const OpenedStep& step, const StepFiles& files, const Place& place) {
  if (place.index == 0) return stat_of_step(parts, place, step.step->step());
  const Entry& entry = step.step->entry(*files.at(place.index));
  views::Access access = parts.ownership.access_of(entry);
  if (entry.kind == Entry::Kind::link) access.mode = 0777;
  const uint64_t size = entry.kind == Entry::Kind::link ? entry.target.size() : entry.size;
  return new_stat(number_of(place), type_of(entry.kind), access, size, entry.mtime);
}

struct stat stat_of_node(const Parts& parts, const RemoteView& view, const Place& place, const View::Node& node) {
  if (place.index == 0) return stat_of_step(parts, place, view.of->step->step());
  return new_stat(number_of(place), View::type_of(node), node.access, node.size,
                  time_of(view.of->step->step().committed));
}

void reply_entry(const RemoteRequest& request, const struct stat& st, double seconds) {
  fuse_entry_param entry{};
  entry.ino = st.st_ino;
  entry.attr = st;
  entry.attr_timeout = entry.entry_timeout = seconds;
  request.answer([&](fuse_req_t req) { return fuse_reply_entry(req, &entry); });
}

void reply_attributes(const RemoteRequest& request, const struct stat& st, double seconds) {
  request.answer([&](fuse_req_t req) { return fuse_reply_attr(req, &st, seconds); });
}

bool may_enter(const RemoteRequest& request, const Credentials& who, const OpenedStep& step, const StepFiles& files,
               unsigned wanted) {
  if (request.place().index != 0 || request.parts().ownership.only) return true;
  const Entry& folder = step.step->entry(*files.at(0));
  meta::InodeRecord record;
  record.uid = folder.uid;
  record.gid = folder.gid;
  record.mode = folder.mode;
  return meta::may_access(who, record, wanted);
}

bool is_open_to_all(const RemoteRequest& request, const OpenedStep& step, const StepFiles& files) {
  if (request.place().index != 0 || request.parts().ownership.only) return true;
  return (step.step->entry(*files.at(0)).mode & 0111U) == 0111U;
}

const StepFiles& files_of(const OpenedStep& step, const Place& place) {
  return step.files(place.kind == Place::Kind::of_slot, place.slot);
}

}  // namespace ckptfs::fs::remote_mount
