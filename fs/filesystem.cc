#include "fs/filesystem.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <utility>

#include "fs/passthrough.h"
#include "io/lease.h"
#include "io/log.h"

namespace ckptfs::fs {
namespace {

constexpr uint64_t kReadingsAtOnce = 2;  // of up to some 200 MiB

}  // namespace

Filesystem::Filesystem(const MountOptions& mount_options, meta::Store& mounted_store)
    : options(mount_options),
      store(mounted_store),
      tree(mounted_store.tree()),
      descriptors(mount_options.for_others),
      memory(mount_options.for_others),
      readings(kReadingsAtOnce),
      notifications(
          [this](const Notifications::Change& change) {
            // What the kernel does not remember is no error.
            if (change.name.empty()) {
              fuse_lowlevel_notify_inval_inode(session, change.inode, -1, 0);
            } else {
              fuse_lowlevel_notify_inval_entry(session, change.inode, change.name.c_str(), change.name.size());
            }
          },
          counters),
      files(environment()),
      mapped_files(tree),
      adoptions(*this),
      lanes(tasks),
      views(
          mounted_store, lanes, [this](meta::InodeNumber inode, int blob) { return writers_of(inode, blob); }, readings,
          leaving),
      view_files(*this),
      control(*this),
      caretaker(mounted_store, {.quiet = std::chrono::seconds(options.quiet_seconds),
                                .scrub = std::chrono::seconds(options.scrub_seconds)}),
      step_facts(*this),
      removals(*this),
      rotation(*this) {}

OpenFileTable::Environment Filesystem::environment() {
  OpenFileTable::Environment environment;
  environment.open_blob = [this](meta::InodeNumber inode) { return tree.open_blob(inode, O_RDONLY); };
  environment.open_backing = [this](int descriptor) { return begin_passthrough(descriptor); };
  environment.close_backing = [this](int backing_id) { end_passthrough(backing_id); };
  environment.invalidate = [this](meta::InodeNumber inode) { notifications.attributes_changed(inode); };
  environment.invalidate_name = [this](meta::InodeNumber folder, const std::string& name) {
    notifications.name_changed(folder, name);
  };
  environment.reap = [this](meta::InodeNumber inode) {
    write_errors.clear(inode);
    control.forget(inode);
    step_facts.forget(inode);
    tree.reap(inode);
  };
  environment.cut = [this](meta::InodeNumber inode) { return adoptions.cut(inode); };
  environment.about_to_change = [this](meta::InodeNumber inode) { view_files.let_go(inode); };
  environment.let_go = [this] { view_files.let_all_go(); };
  environment.write_back = [this](OpenFile& file, int descriptor) -> Result<> {
    TRY(adoptions.cut(file.inode));
    if (modes.passthrough) return success();  // mappings are of the blob itself, and a clone takes its dirty pages
    const int result = fuse_lowlevel_notify_inval_inode(session, file.inode, 0, 0);
    if (result != 0 && result != -ENOENT) {
      return Error(-result, "writing back mapped pages of " + tree.path_of(file.inode));
    }
    return sync_data(file, descriptor);
  };
  return environment;
}

Result<int> Filesystem::begin_passthrough(int descriptor) {
  if (!modes.passthrough) return 0;
  Result<int> id = open_backing(fuse_session_fd(session), descriptor);
  if (!id) {
    add(counters.passthrough_fallbacks);
    log::warn("{}; the file is served by the daemon until its last close", id.error().message());
  }
  return id;
}

void Filesystem::end_passthrough(int backing_id) {
  if (const auto closed = close_backing(fuse_session_fd(session), backing_id); !closed) {
    log::error("{} ({})", closed.error().message(), backing_id);
  }
}

double Filesystem::attribute_timeout(const meta::Attributes& attributes) const {
  const meta::InodeRecord& record = attributes.record;
  if (!record.is_live_file()) return kLongTimeout;
  if ((record.flags & meta::kRecovered) != 0) return 0;
  const meta::InodeNumber inode = attributes.stat.st_ino;
  return files.open_for_writing(inode) || mapped_files.may_have_changed(inode, record) ? 0 : kLongTimeout;
}

struct stat Filesystem::shown(const meta::Attributes& attributes) const {
  constexpr uint64_t kBlock = 512;
  struct stat stat = attributes.stat;
  const meta::InodeNumber inode = stat.st_ino;
  if (!adoptions.knows(inode)) return stat;
  // Asked again, since the blob may be cut at any moment: what is asked after `end` was none is the file's own size.
  auto end = adoptions.size(inode);
  for (int i = 0; i < 2; ++i) {
    if (const auto fresh = tree.attributes(inode)) stat = fresh.value().stat;
    const auto before = std::exchange(end, adoptions.size(inode));
    if (end || !before) break;
  }
  if (end) {
    stat.st_size = static_cast<off_t>(*end);
    stat.st_blocks = std::min(stat.st_blocks, static_cast<blkcnt_t>((*end + kBlock - 1) / kBlock));
  }
  return stat;
}

fuse_entry_param Filesystem::entry_of(const meta::Attributes& attributes) const {
  fuse_entry_param entry{};
  entry.ino = attributes.stat.st_ino;
  entry.attr = shown(attributes);
  entry.attr_timeout = attribute_timeout(attributes);
  entry.entry_timeout = kLongTimeout;
  return entry;
}

void Filesystem::dropped(const meta::Dropped& dropped) {
  if (dropped.last_name) files.dropped(dropped.inode);
}

void Filesystem::write_failed(meta::InodeNumber inode, WriteFailure what, const Error& error) {
  add(counters.write_errors[static_cast<size_t>(what)]);
  const char* const operation = kWriteNames[static_cast<size_t>(what)];
  const std::string path = tree.path_of(inode);
  const std::time_t now = std::time(nullptr);
  const std::string text = fmt::format("{:%Y-%m-%d %H:%M:%S} {}: {}", fmt::localtime(now), operation, error.message());
  if (write_errors.record(inode, error.errno_value(), text)) {
    log::error("{} of {} failed: {}", operation, path, error.message());
  }
}

Result<> Filesystem::clear_privileges(meta::InodeNumber inode, const meta::Caller& caller) {
  if (caller.uid == 0) return success();
  TRY_ASSIGN(const meta::InodeRecord record, tree.inode(inode));
  if (record.is_dir() || !has_privileges(record.mode)) return success();
  meta::AttributeChange change;
  change.mode = without_privileges(record.mode, caller.gid == record.gid) & 07777u;
  TRY(tree.change_attributes(inode, change));
  if (!has_privileges(*change.mode)) privileges.end(inode);
  files.invalidate(inode);
  return success();
}

void Filesystem::clear_privileges_if_written(meta::InodeNumber inode) {
  const auto since = privileges.since(inode);
  if (!since) return;
  const auto attributes = tree.attributes(inode);
  if (!attributes) return privileges.end(inode);
  const timespec& mtime = attributes.value().stat.st_mtim;
  if (mtime.tv_sec == since->tv_sec && mtime.tv_nsec == since->tv_nsec) return;
  privileges.end(inode);
  constexpr uint32_t kAnybody = UINT32_MAX;  // who wrote nobody knows
  if (const auto cleared = clear_privileges(inode, {kAnybody, kAnybody, 0}); !cleared) {
    log::error("{}: suid and sgid stay, though it was written to: {}", tree.path_of(inode), cleared.error().message());
  }
}

Result<> Filesystem::watch_privileges(meta::InodeNumber inode) {
  TRY_ASSIGN(const meta::Attributes attributes, tree.attributes(inode));
  if (!attributes.record.is_live_file()) return success();
  if (files.open_for_writing(inode)) wait_for_next_tick(attributes.stat.st_mtim);
  privileges.begin(inode, attributes.stat.st_mtim);
  return success();
}

Result<> Filesystem::sync_data(OpenFile& file, int descriptor) {
  Result<> synced = tree.sync_file(file.inode, descriptor);
  if (!synced) {
    file.errors.record(synced.error().errno_value());
    write_failed(file.inode, WriteFailure::fdatasync, synced.error());
  }
  return synced;
}

Result<views::Writers> Filesystem::writers_of(meta::InodeNumber inode, int blob) const {
  const OpenFileTable::Writers counted = files.writers_of(inode);
  views::Writers writers;
  if (!counted.any) writers.changed = counted.changed;
  writers.writing = counted.any && !counted.past_daemon;
  writers.closing = counted.closing;
  if (!writers.writing) {
    TRY_ASSIGN(writers.writing, io::has_writer(blob));
  }
  return writers;
}

uint64_t Filesystem::owed_by_others(meta::InodeNumber inode) const {
  uint64_t owed = 0;
  for (const meta::InodeNumber other : files.open_for_writing()) {
    if (other == inode) continue;
    const auto record = tree.inode(other);
    // A file that has been removed since owes nothing that a save could be refused for.
    if (record && (record.value().flags & meta::kSwap) != 0) owed += record.value().owed;
  }
  return owed;
}

}  // namespace ckptfs::fs
