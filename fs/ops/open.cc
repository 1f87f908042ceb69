// Opens and closes of regular files, and fsync. How opens share a file, and when they end: fs/open/open_files.h. Which
// opens bypass the daemon: fs/open/open_modes.h.
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "fs/ops/operations.h"
#include "fs/ops/request.h"
#include "io/fault.h"
#include "io/log.h"
#include "meta/names.h"

namespace ckptfs::fs {

namespace {

// Opens of one file share a descriptor. It counts for each of them, since any of them may be the last to close.
constexpr uint64_t kDescriptorsOfAnOpen = 1;
constexpr uint64_t kDescriptorsOfItsOwn = 2;  // further ones, of an open that the daemon serves: buffered and direct

// When CREATE is answered, the kernel checks the file's mode and owner to end the open. For so long it may use those of
// the answer; else it would ask for them. It sees its own changes of the file at once. Before a descriptor is handed
// out, which changes the file past the kernel, the kernel is told (fs/control/blob_commands.cc).
constexpr double kUntilOpened = 0.001;  // seconds

// An open that is not answered yet, but counted. The destructor uncounts it, unless a handle has taken it over.
class PendingOpen {
 public:
  PendingOpen(Filesystem& fs, meta::InodeNumber inode, bool writing)
      : fs_(fs), writing_(writing), begun_(fs.files.begin(inode, writing)) {}
  PendingOpen(const PendingOpen&) = delete;
  PendingOpen& operator=(const PendingOpen&) = delete;
  ~PendingOpen() {
    if (!begun_.file) return;
    const meta::InodeNumber inode = begun_.file->inode;
    if (fs_.files.end(begun_.file, writing_)) fs_.tree.finished_writing(inode);
  }

  OpenFile& file() const { return *begun_.file; }
  // From now on the kernel may not use the attributes that it remembers.
  bool outdates_attributes() const { return begun_.first_writer && begun_.remembered; }
  std::shared_ptr<OpenFile> take() { return std::move(begun_.file); }

 private:
  Filesystem& fs_;
  const bool writing_;
  OpenFileTable::OpenCount begun_;
};

// Ends an open: closes its own descriptors first, then counts it down.
void end_handle(Filesystem& fs, std::unique_ptr<Handle> handle) {
  const std::shared_ptr<OpenFile> file = handle->file;
  const bool writing = handle->writing;
  const int descriptor = handle->descriptor;
  if (handle->reader != 0) fs.adopter.predictor.closed(handle->reader, file->inode);
  auto dedup = std::move(handle->dedup);
  handle.reset();
  if (dedup) fs.adopter.end(std::move(dedup));
  if (writing && fs.modes.passthrough) fs.mapped_files.closed(file->inode, descriptor);
  if (!fs.files.end(file, writing)) return;
  fs.tree.finished_writing(file->inode);
  fs.privileges.clear_if_written(file->inode);
}

Result<std::unique_ptr<DataPath>> make_data_path(Filesystem& fs, const OpenFile& file, int shared, int flags) {
  DataPath::Descriptors descriptors;
  descriptors.shared = shared;
  if (opens_for_writing(flags)) {
    // The blob is never opened with O_APPEND: the kernel says where to write.
    TRY_ASSIGN(descriptors.own, fs.tree.open_blob(file.inode, flags & (O_ACCMODE | O_SYNC | O_DSYNC)));
  }
  if ((flags & O_DIRECT) != 0) {
    auto direct = fs.tree.open_blob(file.inode, flags & (O_ACCMODE | O_SYNC | O_DSYNC | O_DIRECT));
    if (direct) {
      descriptors.direct = std::move(direct).value();
    } else if (direct.error().errno_value() == EINVAL) {
      add(fs.counters.direct_fallbacks);
      log::warn("{} cannot be opened with O_DIRECT: buffered instead", fs.tree.path_of(file.inode));
    } else {
      return direct.error();
    }
  }
  return std::make_unique<DataPath>(std::move(descriptors), fs.modes.own_alignment(), fs.counters,
                                    [&fs, &file] { return fs.files.is_only_open(file); });
}

// If the daemon serves this open, may it be read by splice, through the kernel's page cache? Not with O_DIRECT.
bool may_be_spliced(int flags) { return (flags & O_ACCMODE) != O_WRONLY && (flags & O_DIRECT) == 0; }

void count_as_spliced(OpenFile& file, Handle& handle) {
  handle.spliced = &file.spliced;
  ++file.spliced;
}

// Decides whether this open bypasses the daemon (all cases: fs/open/open_modes.h). Fills in what the kernel must know
// of that.
Result<> choose_way(Filesystem& fs, OpenFile& file, const meta::InodeRecord& record, Handle& handle,
                    fuse_file_info& info) {
  TRY_ASSIGN(const auto backing, fs.files.backing(file));
  handle.descriptor = backing.descriptor;
  const bool passthrough = backing.backing_id != 0;
  if (passthrough && handle.dedup && may_be_spliced(info.flags)) {
    count_as_spliced(file, handle);
    // Another open of the file may write past the daemon. A later open finds this one counted.
    if (!fs.files.is_only_open(file)) {
      handle.dedup.reset();
      handle.spliced = nullptr;
      --file.spliced;
    }
  }
  const unsigned own = handle.spliced != nullptr ? 1 : 0;
  const bool spliced_by_others = handle.writing && file.spliced > own;
  const bool through_daemon = !passthrough || handle.dedup || spliced_by_others ||
                              fs.modes.must_be_served(info.flags, record, handle.writing && fs.tree.short_of_space());
  const bool syncs = (info.flags & (O_DSYNC | O_SYNC)) != 0;
  if (through_daemon) {
    TRY(handle.claim.add(kDescriptorsOfItsOwn));
    TRY_ASSIGN(handle.data, make_data_path(fs, file, backing.descriptor, info.flags));
    handle.syncs = syncs;
    if (handle.spliced == nullptr && may_be_spliced(info.flags)) count_as_spliced(file, handle);
  }
  const bool may_map = (info.flags & O_ACCMODE) == O_RDWR;
  if (handle.writing && !through_daemon && (syncs || may_map)) fs.tree.write_back().note_synced_elsewhere(record.blob);
  info.backing_id = backing.backing_id;
  info.direct_io = through_daemon ? 1 : 0;
  info.parallel_direct_writes = through_daemon ? 1 : 0;
  info.noflush = through_daemon && handle.writing ? 0 : 1;
  add(!passthrough     ? fs.counters.opens_direct
      : through_daemon ? fs.counters.opens_through_daemon
                       : fs.counters.opens_passthrough);
  return success();
}

// Everything of an open but the reply. Fills in what the kernel is to know (fh, backing id, direct_io). `empty_name`:
// what the file is called, if it was made or is emptied by this open.
Result<std::unique_ptr<Handle>> open_file(Filesystem& fs, meta::InodeNumber inode, const meta::Caller& caller,
                                          fuse_file_info& info, const std::optional<std::string>& empty_name) {
  const bool writing = opens_for_writing(info.flags);
  TRY_ASSIGN(auto claim, fs.descriptors.take(caller.uid, kDescriptorsOfAnOpen));
  PendingOpen pending(fs, inode, writing);  // counted before the file's mode is read (fs/open/privileges.h)
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(inode));
  if (!record.is_regular()) return Error(record.is_dir() ? EISDIR : ENXIO);
  if (fs.tree.is_damaged(inode)) return Error(EIO, "damaged: its blob is missing or short (see `ckptfs status`)");
  if (writing) {
    TRY(fs.tree.prepare_writing(inode, caller, fs.cow_reserve_of_others(inode)));
    // A refused open wrote nothing. An O_RDWR open may only read.
    const bool writes = empty_name || (info.flags & O_ACCMODE) == O_WRONLY;
    writes ? fs.writers.note_written(inode, caller, empty_name.has_value()) : fs.writers.note(record.parent, caller);
  }
  if ((info.flags & O_TRUNC) != 0) {
    fs.files.changes(inode);
    TRY(fs.tree.truncate(inode, 0));
    fs.view_files.drop_blocks_of(inode);  // for files of views that were opened meanwhile
    TRY(fs.privileges.clear(inode, caller));
    fs.write_errors.clear(inode);
  }
  // What is written through it will be durable at once. So its name has to be.
  if (writing && (info.flags & (O_DSYNC | O_SYNC)) != 0) TRY(fs.tree.sync());
  auto handle = std::make_unique<Handle>();
  handle->claim = std::move(claim);
  handle->writing = writing;
  handle->seen_errors = pending.file().errors.now();
  handle->had_privileges = writing && has_privileges(record.mode);
  if (empty_name && writing && (record.flags & meta::kSwap) != 0) fs.resumes.emptied(caller, *empty_name);
  if (empty_name && fs.options.adopt && Adopter::may_adopt(info.flags)) {
    handle->dedup = fs.adopter.begin(pending.file(), record, *empty_name, caller, info.flags);
  }
  TRY(choose_way(fs, pending.file(), record, *handle, info));
  // Until now the kernel was allowed to cache the attributes for a day.
  if (pending.outdates_attributes()) fs.notifications.attributes_changed(inode);
  if (!writing && caller.pid != 0) {  // 0: of another pid namespace
    handle->reader = caller.pid;
    fs.adopter.predictor.opened(caller, inode);
    fs.resumes.opened(caller, inode, record, fs.files.name_of(inode));
  }
  handle->file = pending.take();
  return handle;
}

void op_open(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const Request request(req, Operation::open, inode);
  const auto work = [request, info = *info]() mutable {
    Filesystem& fs = request.fs();
    std::optional<std::string> empty_name;
    if ((info.flags & O_TRUNC) != 0) empty_name = fs.files.name_of(request.inode());
    auto opened = open_file(fs, request.inode(), request.caller(), info, empty_name);
    if (!opened) return request.error(opened.error());
    info.fh = fs.handles.add(std::move(opened).value());
    // The request was interrupted: there will be no release.
    if (request.answer(fuse_reply_open, &info) != 0) end_handle(fs, fs.handles.take(info.fh));
  };
  if (opens_for_writing(info->flags) || (info->flags & O_TRUNC) != 0) {
    through_gate(request.fs(), inode, work);
  } else {
    auto now = work;
    now();
  }
}

void create(const Request& request, mode_t mode, fuse_file_info info) {
  Filesystem& fs = request.fs();
  const meta::NewNode node{
      .mode = (mode & 07777u) | S_IFREG, .rdev = 0, .target = {}, .writer = fs.writers.program_of(request.caller())};
  const auto made = fs.tree.make(request.inode(), request.name(), node, request.caller());
  if (!made) {
    // Somebody else, say a save, has made the file since the kernel's lookup. ESTALE makes the kernel look again.
    const bool look_again = made.error().errno_value() == EEXIST && (info.flags & O_EXCL) == 0;
    return request.error(look_again ? Error(ESTALE) : made.error());
  }
  const meta::InodeNumber inode = made.value().stat.st_ino;
  info.flags &= ~O_TRUNC;
  auto opened = open_file(fs, inode, request.caller(), info, request.name());
  if (!opened) {
    if (const auto dropped = fs.tree.unlink(request.inode(), request.name())) fs.dropped(dropped.value());
    return request.error(opened.error());
  }
  fuse_entry_param entry = fs.entry_of(made.value());
  if (!has_privileges(entry.attr.st_mode)) entry.attr_timeout = kUntilOpened;
  fs.files.add_lookup(inode, request.name());
  info.fh = fs.handles.add(std::move(opened).value());
  if (request.answer(fuse_reply_create, &entry, &info) != 0) {
    end_handle(fs, fs.handles.take(info.fh));
    fs.files.forget(inode, 1);
  }
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  const Request request(req, Operation::create, parent, name);
  if (parent == meta::kRootInode && request.name() == meta::kViewsName) {
    return request.error(Error(EBUSY, "/views is a name of ckptfs itself"));
  }
  through_gate(request.fs(), parent, [request, mode, info = *info] { create(request, mode, info); });
}

// Comes before close() returns, for opens that write through the daemon. RELEASE comes later, and only after the last
// close of the open.
void op_flush(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const Request request(req, Operation::flush, inode);
  const Handle& handle = Handles<Handle>::get(info->fh);
  if (handle.writing) request.fs().files.closing(*handle.file);
  request.ok();
}

void op_release(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const Request request(req, Operation::release, inode);
  if (const auto delayed = io::fault_point("fs.release"); !delayed) log::error("{}", delayed.error().message());
  if (auto handle = request.fs().handles.take(info->fh)) end_handle(request.fs(), std::move(handle));
  request.ok();
}

void sync_handle(const Request& request, Handle& handle) {
  Filesystem& fs = request.fs();
  const auto synced = fs.file_sync.sync_data(*handle.file, handle.descriptor);
  if (const int earlier = handle.file->errors.check(handle.seen_errors); earlier != 0) {
    if (!synced) return request.logged_error(synced.error());
    return request.error(Error(earlier, "an earlier write-back of this file failed"));
  }
  if (!synced) return request.logged_error(synced.error());
  request.result(fs.tree.sync());
}

// The kernel keeps the file open until it is answered.
void op_fsync(fuse_req_t req, fuse_ino_t inode, int, fuse_file_info* info) {
  const Request request(req, Operation::fsync, inode);
  Handle& handle = Handles<Handle>::get(info->fh);
  sync_and_answer(request, [request, &handle] { sync_handle(request, handle); });
}

}  // namespace

void add_open_operations(fuse_lowlevel_ops& ops) {
  ops.create = op_create;
  ops.open = op_open;
  ops.flush = op_flush;
  ops.release = op_release;
  ops.fsync = op_fsync;
}

}  // namespace ckptfs::fs
