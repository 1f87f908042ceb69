#include "fs/mount/mount.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <span>

#include "fs/kernel/session.h"
#include "fs/mount/mounted_files.h"
#include "fs/ops/filesystem.h"
#include "fs/ops/operations.h"
#include "io/fault.h"
#include "io/lease.h"
#include "io/log.h"

namespace ckptfs::fs {

struct Mount::Internals {
  MountOptions options;
  std::unique_ptr<meta::Store> store;
  std::unique_ptr<MountedFiles> open_files;
  std::unique_ptr<Filesystem> filesystem;
  std::unique_ptr<Session> session;
  std::atomic<Session*> to_stop{nullptr};  // null: it is gone, or was never there
};

namespace {

// Requests of 1 MiB whose memory begins inside a page span 257 pages; libfuse derives the number from max_write.
constexpr unsigned kMaximumWrite = RequestLoop::kLargestWrite;
constexpr unsigned kMaximumPages = kMaximumWrite / RequestLoop::kPage;
constexpr unsigned kMaximumBackground = 128;  // fewer starve asynchronous direct I/O and delay RELEASE
constexpr unsigned kCongestionThreshold = 96;
constexpr const char* kPagesLimit = "/proc/sys/fs/fuse/max_pages_limit";

// The kernel reads the limit when a connection is made.
void raise_pages_limit() {
  const auto text = io::read_file(kPagesLimit);
  const unsigned long present = text ? std::strtoul(text.value().c_str(), nullptr, 10) : 0;
  if (present >= kMaximumPages) return;
  const std::string wanted = std::to_string(kMaximumPages);
  const auto raised = [&]() -> Result<> {
    TRY_ASSIGN(const io::Fd file, io::open_at(AT_FDCWD, kPagesLimit, O_WRONLY));
    return io::write_full(file.get(), std::as_bytes(std::span(wanted)), 0);
  }();
  if (raised) {
    log::info("{} raised from {} to {}", kPagesLimit, present, wanted);
  } else {
    log::warn("{} stays at {}: {}; unaligned requests of 1 MiB will come in two parts", kPagesLimit, present,
              raised.error().message());
  }
}

void op_init(void* user_data, fuse_conn_info* connection) {
  auto& fs = *static_cast<Filesystem*>(user_data);
  for (const uint64_t wanted :
       {uint64_t{FUSE_CAP_ATOMIC_O_TRUNC}, uint64_t{FUSE_CAP_HANDLE_KILLPRIV_V2}, uint64_t{FUSE_CAP_ASYNC_DIO},
        uint64_t{FUSE_CAP_ASYNC_READ}, uint64_t{FUSE_CAP_PARALLEL_DIROPS}, uint64_t{FUSE_CAP_READDIRPLUS},
        uint64_t{FUSE_CAP_READDIRPLUS_AUTO}, uint64_t{FUSE_CAP_DIRECT_IO_ALLOW_MMAP},
        uint64_t{FUSE_CAP_NO_EXPORT_SUPPORT}}) {
    if (!fuse_set_feature_flag(connection, wanted)) log::warn("the kernel lacks FUSE capability {:#x}", wanted);
  }
  for (const uint64_t unwanted :
       {uint64_t{FUSE_CAP_WRITEBACK_CACHE}, uint64_t{FUSE_CAP_SPLICE_READ}, uint64_t{FUSE_CAP_SPLICE_WRITE},
        uint64_t{FUSE_CAP_SPLICE_MOVE}, uint64_t{FUSE_CAP_AUTO_INVAL_DATA}, uint64_t{FUSE_CAP_POSIX_ACL},
        uint64_t{FUSE_CAP_POSIX_LOCKS}, uint64_t{FUSE_CAP_FLOCK_LOCKS}, uint64_t{FUSE_CAP_EXPORT_SUPPORT}}) {
    fuse_unset_feature_flag(connection, unwanted);
  }
  if (fs.options.passthrough == PassthroughOption::off) {
    fs.modes.reason = "switched off by -o passthrough=off";
  } else if (fuse_set_feature_flag(connection, FUSE_CAP_PASSTHROUGH)) {
    fs.modes.passthrough = true;
    connection->max_backing_stack_depth = FUSE_BACKING_STACKED_UNDER;  // blobs lie on no stacked file system
  } else {
    fs.modes.reason = "the kernel has no FUSE passthrough (Linux 6.9 or newer has)";
  }
  connection->max_write = kMaximumWrite;
  connection->max_background = kMaximumBackground;
  connection->congestion_threshold = kCongestionThreshold;
  connection->no_interrupt = 1;  // nothing here can be interrupted half-way
  fs.kernel.end_loop();          // Session::mount answers this one request only
}

fuse_lowlevel_ops operations() {
  fuse_lowlevel_ops ops{};
  ops.init = op_init;
  add_name_operations(ops);
  add_attribute_operations(ops);
  add_directory_operations(ops);
  add_open_operations(ops);
  add_data_operations(ops);
  add_copy_operations(ops);
  add_xattr_operations(ops);
  return with_views(ops);
}

// Reads the store's alignment from a file that is there, since a full store has no room for a new one.
Result<io::DirectAlignment> alignment_of(const meta::Store& store) {
  TRY_ASSIGN(const io::Fd lock, io::open_at(AT_FDCWD, store.folder() + "/lock", O_RDONLY));
  return io::direct_alignment(lock.get());
}

Result<> choose_open_modes(Filesystem& fs) {
  OpenModes& modes = fs.modes;
  modes.odirect = fs.options.odirect;
  TRY_ASSIGN(modes.alignment, alignment_of(fs.store));
  if (modes.passthrough) {
    const auto probe = fs.kernel.probe_passthrough(fs.store.folder() + "/lock");
    modes.passthrough = probe.has_value();
    modes.reason = probe ? "the kernel took a backing file of the store" : probe.error().message();
  }
  if (!modes.passthrough && fs.options.passthrough == PassthroughOption::on) {
    return Error(EOPNOTSUPP, "-o passthrough=on is impossible here: " + modes.reason +
                                 "; leave the option out to serve files through the daemon");
  }
  log::info("open mode {}: {}; O_DIRECT {} (memory {}, offset {}: {})", modes.passthrough ? "passthrough" : "direct",
            modes.reason, modes.odirect == OdirectOption::safe ? "safe" : "raw", modes.alignment.memory,
            modes.alignment.offset, modes.alignment.harmful() ? "harmful" : "harmless");
  return success();
}

// Decides who owns the root and /steps of a new store.
meta::StoreOptions store_options(const MountOptions& options) {
  meta::StoreOptions result;
  result.folder = options.store;
  result.image = options.image;
  struct stat mountpoint {};
  if (::stat(options.mountpoint.c_str(), &mountpoint) == 0) {
    result.owner_uid = mountpoint.st_uid;
    result.owner_gid = mountpoint.st_gid;
  }
  const auto from_environment = [](const char* name, uint32_t& id) {
    if (const char* text = std::getenv(name)) id = static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
  };
  if (::geteuid() == 0) {
    from_environment("SUDO_UID", result.owner_uid);
    from_environment("SUDO_GID", result.owner_gid);
  } else {  // nobody else may look into it
    result.owner_uid = ::geteuid();
    result.owner_gid = ::getegid();
  }
  if (options.uid) result.owner_uid = *options.uid;
  if (options.gid) result.owner_gid = *options.gid;
  return result;
}

// After a loop that ended by itself: was the connection cut, so that a dead mount is still there? The call bypasses the
// kernel's attribute cache, which would answer for the dead mount.
bool connection_was_cut(const std::string& mountpoint) {
  struct statx status {};
  constexpr int kAsk = AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC;
  return ::statx(AT_FDCWD, mountpoint.c_str(), kAsk, STATX_BASIC_STATS, &status) != 0 && errno == ENOTCONN;
}

// Can somebody still write one of these files without the daemon, which is leaving?
bool has_survivors(const meta::Tree& tree, const std::vector<meta::InodeNumber>& inodes) {
  for (const meta::InodeNumber inode : inodes) {
    const auto blob = tree.open_blob(inode, O_RDONLY);
    const auto busy = blob ? io::has_writer(blob.value().get()) : Result<bool>(true);
    if (!busy || busy.value()) return true;
  }
  return false;
}

}  // namespace

Mount::Mount(std::unique_ptr<Internals> internals) : internals_(std::move(internals)) {}

Mount::~Mount() {
  if (!internals_) return;
  internals_->filesystem->leaving = true;
  internals_->filesystem->set_aside.stop();
  internals_->filesystem->rotation.stop();
  internals_->filesystem->removals.stop();
  internals_->filesystem->maintenance.stop();
  internals_->filesystem->tasks.wait();
  const bool all_came_back = internals_->filesystem->notifications.stop();
  if (!all_came_back && internals_->session) internals_->session->leave_to_thread();
  internals_->filesystem->view_handles.clear();
  internals_->filesystem->view_files.drop_all_blocks();
  internals_->session.reset();
  internals_->filesystem->handles.clear();
}

Result<std::unique_ptr<Mount>> Mount::start(const MountOptions& options) {
  // Without this each of up to 32 threads would get a heap of its own, which is never freed.
  ::mallopt(M_ARENA_MAX, 4);
  // What a step's reading frees goes back at once. By default malloc keeps more the larger what was freed: 32 MiB in
  // one piece, 64 MiB at the end of each heap.
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 4 << 20);
  io::ignore_lease_signals();
  raise_pages_limit();
  auto internals = std::make_unique<Internals>();
  internals->options = options;
  TRY_ASSIGN(internals->store, meta::Store::open(store_options(options)));
  internals->filesystem = std::make_unique<Filesystem>(options, *internals->store);
  Filesystem& fs = *internals->filesystem;
  TRY(fs.step_facts.start());
  if (!options.read_only) TRY(fs.set_aside.start());

  const std::string source = options.store_name.empty() ? options.store : options.store_name;
  const auto mounted = [&]() -> Result<> {
    TRY_ASSIGN(internals->session,
               Session::make({options.mountpoint, source, options.for_others, options.read_only, options.no_exec},
                             operations(), &fs));
    fs.kernel.connect(internals->session->get());
    if (options.before_mount) options.before_mount();
    TRY(internals->session->mount());
    if (const auto ahead = internals->session->read_far_ahead(); !ahead) {
      log::info("the kernel reads views ahead by 128 KiB only: {}", ahead.error().message());
    }
    return choose_open_modes(fs);
  }();
  if (!mounted) {
    internals->session.reset();
    if (const auto closed = internals->store->close(); !closed)
      log::error("closing the store: {}", closed.error().message());
    return mounted.error();
  }
  internals->to_stop = internals->session.get();
  internals->open_files = std::make_unique<MountedFiles>(fs);
  internals->store->set_open_files(internals->open_files.get());
  fs.notifications.start();
  fs.maintenance.start();
  fs.removals.start();
  if (!options.read_only) {
    fs.rotation.start();
    if (const auto remotes = fs.remotes.start(); !remotes) log::error("remotes: {}", remotes.error().message());
  }
  log::info("{} is mounted at {}", source, options.mountpoint);
  return std::unique_ptr<Mount>(new Mount(std::move(internals)));
}

Result<> Mount::run() {
  Filesystem& fs = *internals_->filesystem;
  Result<> looped = internals_->session->loop();
  bool dirty = !looped || internals_->session->was_forced() || connection_was_cut(internals_->options.mountpoint);
  internals_->session->release();
  fs.leaving = true;
  fs.step_facts.stop();  // ends inspections that are under way
  fs.set_aside.stop();
  if (internals_->options.before_close) internals_->options.before_close();
  fs.remotes.stop();
  fs.rotation.stop();
  fs.removals.stop();
  fs.maintenance.stop();
  fs.tasks.wait();
  if (!fs.notifications.stop()) {
    log::warn(
        "{}: a program holds a folder's lock, for which a thread of the daemon waits in the kernel; leaving all "
        "the same. The process ends when that program does",
        internals_->options.mountpoint);
    internals_->session->leave_to_thread();
  }

  // The kernel does not send every RELEASE and FORGET when a mount ends.
  fs.directories.clear();
  fs.view_handles.clear();
  fs.view_files.drop_all_blocks();
  fs.handles.clear();
  const OpenFileTable::Leftover leftover = fs.files.clear();
  internals_->to_stop = nullptr;
  internals_->session.reset();
  dirty = dirty || (fs.modes.passthrough && has_survivors(fs.tree, leftover.writing));
  if (!dirty) {
    for (const meta::InodeNumber inode : leftover.writing) fs.tree.finished_writing(inode);
    for (const meta::InodeNumber inode : leftover.reap) fs.tree.reap(inode);
  }
  Result<> closed = fs.tree.sync();
  if (dirty) {
    log::warn("{}: ended with files in use; the next mount looks at every file", internals_->options.mountpoint);
  } else if (closed) {
    closed = internals_->store->close();
  }
  if (!closed) log::error("closing the store: {}", closed.error().message());
  TRY(closed);
  return looped;
}

void Mount::stop() {
  if (Session* const session = internals_->to_stop) session->stop();
}

meta::Store& Mount::store() { return *internals_->store; }

Filesystem& Mount::filesystem() { return *internals_->filesystem; }

const MountOptions& Mount::options() const { return internals_->options; }

}  // namespace ckptfs::fs
