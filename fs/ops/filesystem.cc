#include "fs/ops/filesystem.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "io/mount_table.h"

namespace ckptfs::fs {
namespace {

constexpr uint64_t kReadingsAtOnce = 1;  // each takes up to 100 MiB
constexpr size_t kSyncsAtOnce = 16;      // of one user: so many the disk can take together

}  // namespace

Filesystem::Filesystem(const MountOptions& mount_options, meta::Store& mounted_store)
    : options(mount_options),
      store(mounted_store),
      tree(mounted_store.tree()),
      backing_ids(modes, kernel, counters),
      descriptors(mount_options.for_others),
      memory(mount_options.for_others),
      readings(kReadingsAtOnce),
      notifications(
          [this](const Notifications::Change& change) {
            if (change.name.empty()) {
              kernel.attributes_changed(change.inode);
            } else {
              kernel.name_changed(change.inode, change.name);
            }
          },
          counters, [this] { kernel.leave_descriptors(); }, {}),
      write_errors(tree, counters),
      writers(store, step_facts, [this](const StepWriters::Written& written) { set_aside.note(written); }),
      resumes(tree),
      files(environment()),
      mapped_files(tree),
      adopter(tree, files, counters),
      file_sync(tree, files, write_errors),
      lanes(tasks),
      syncs(tasks, kSyncsAtOnce),
      views(
          store, lanes, [this](meta::InodeNumber inode, int blob) { return views::writers_of(files, inode, blob); },
          readings, leaving),
      view_files({store, tree, files, backing_ids, modes, counters}),
      privileges(tree, files, notifications),
      maintenance(store, {.quiet = std::chrono::seconds(options.quiet_seconds),
                          .scrub = std::chrono::seconds(options.scrub_seconds)}),
      step_facts(store, files, write_errors, file_sync, readings, saves, pushes,
                 std::chrono::seconds(options.quiet_seconds)),
      abandonment(
          store, files,
          [this](meta::InodeNumber folder) {
            return directories.any([folder](const DirectoryHandle& one) { return one.inode == folder; });
          },
          step_facts, pushes, readings),
      set_aside(store, abandonment, writers, notifications, lanes, std::chrono::seconds(options.quiet_seconds)),
      removals(store, files, notifications),
      thinner(store, views, step_facts, removals, notifications, leaving),
      saver(store, notifications, saves, last_errors, counters, [this] { look_again(); }),
      rotation(store, files, file_sync, step_facts, writers, set_aside, removals, saver, thinner,
               std::chrono::seconds(options.quiet_seconds)),
      remotes({store, step_facts, files, writers, readings, leaving, std::chrono::seconds(options.quiet_seconds)},
              pushes, [this] { rotation.wake(); }) {}

OpenFileTable::Environment Filesystem::environment() {
  OpenFileTable::Environment environment;
  environment.open_blob = [this](meta::InodeNumber inode) { return tree.open_blob(inode, O_RDONLY); };
  environment.open_backing = [this](int descriptor) { return backing_ids.begin(descriptor); };
  environment.close_backing = [this](int backing_id) { backing_ids.end(backing_id); };
  environment.reap = [this](meta::InodeNumber inode) {
    write_errors.clear(inode);
    privileges.forget(inode);
    last_errors.forget(inode);
    step_facts.forget(inode);
    writers.forget(inode);
    set_aside.forget(inode);
    tree.reap(inode);
  };
  environment.about_to_change = [this](meta::InodeNumber inode) { view_files.drop_blocks_of(inode); };
  return environment;
}

double Filesystem::attribute_timeout(const meta::Attributes& attributes) const {
  const meta::InodeRecord& record = attributes.record;
  if (!record.is_live_file()) return kLongTimeout;
  if ((record.flags & meta::kRecovered) != 0) return 0;
  const meta::InodeNumber inode = attributes.stat.st_ino;
  const bool may_change =
      files.open_for_writing(inode) || mapped_files.may_have_changed(inode, record) || has_privileges(record.mode);
  return may_change ? 0 : kLongTimeout;
}

fuse_entry_param Filesystem::entry_of(const meta::Attributes& attributes) const {
  fuse_entry_param entry{};
  entry.ino = attributes.stat.st_ino;
  entry.attr = attributes.stat;
  entry.attr_timeout = attribute_timeout(attributes);
  const bool is_unfinished = attributes.record.is_dir() && set_aside.is_unfinished(entry.ino);
  entry.entry_timeout = is_unfinished ? 0 : kLongTimeout;
  return entry;
}

Result<> Filesystem::check_writable() const {
  if (options.read_only) return Error(EROFS, "the store is mounted read-only (-o ro)");
  TRY_ASSIGN(const auto mounts, io::mount_table());
  const auto ours = io::mounted_at(mounts, options.mountpoint);
  if (!ours || !ours->read_only) return success();
  return Error(EROFS, options.mountpoint + " is mounted read-only; mount -o remount,bind,rw makes it writable");
}

void Filesystem::look_again() {
  rotation.wake();
  remotes.wake();
}

void Filesystem::dropped(const meta::Dropped& dropped) {
  if (dropped.last_name) files.dropped(dropped.inode);
}

uint64_t Filesystem::cow_reserve_of_others(meta::InodeNumber inode) const {
  uint64_t cow_reserve = 0;
  for (const meta::InodeNumber other : files.open_for_writing()) {
    if (other == inode) continue;
    const auto record = tree.inode(other);
    // A file that has been removed since has no reserve, and no save can be refused for it.
    if (record && (record.value().flags & meta::kSwap) != 0) cow_reserve += record.value().cow_reserve;
  }
  return cow_reserve;
}

}  // namespace ckptfs::fs
