#include "meta/store/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "io/fault.h"
#include "io/json.h"
#include "io/log.h"
#include "meta/accounting/accounting.h"
#include "meta/blobs/preallocation_reclaimer.h"
#include "meta/blobs/reaper.h"
#include "meta/names.h"
#include "meta/store/inspection.h"
#include "meta/time.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::meta {
namespace {

constexpr uint64_t kFormat = 4;
constexpr std::chrono::seconds kReclaimInterval{30};

// The answers if nothing is mounted: nothing is open.
class NothingOpen : public OpenFiles {
 public:
  bool open_for_writing(InodeNumber) const override { return false; }
  bool open_at_all(InodeNumber) const override { return false; }
  bool writing() const override { return false; }
  Result<> write_back(const std::vector<InodeNumber>&) override { return success(); }
  void invalidate(InodeNumber) override {}
  void invalidate_name(InodeNumber, const std::string&) override {}
  void drop_view_blocks() override {}
};

std::string new_id() {
  std::random_device random;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", random(), random());
  return text;
}

Result<> make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return last_error(path);
  return success();
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool is_empty(const std::string& folder) {
  std::error_code error;
  return std::filesystem::is_empty(folder, error) || error;
}

Result<> fill_new_index(Index& index, const StoreOptions& options) {
  constexpr InodeNumber kStepsInode = 2;
  InodeRecord root = new_directory(options.owner_uid, options.owner_gid, 0);
  ++root.nlink;
  InodeRecord steps = new_directory(options.owner_uid, options.owner_gid, kRootInode);
  steps.flags = kSeries;
  steps.name = kStepsName;
  Batch batch(index);
  batch.put(kRootInode, root);
  batch.put(kStepsInode, steps);
  batch.put_entry(kRootInode, kStepsName, {kStepsInode, S_IFDIR});
  batch.put_number(kFormatKey, kFormat);
  batch.put_number(kCleanKey, 1);
  batch.put_number(kInodeLimitKey, kStepsInode + 1);
  batch.put_number(kBlobLimitKey, 1);
  TRY(index.commit(std::move(batch)));
  return index.sync();
}

// Makes a store. The index is made aside and renamed, and config.json comes last. So if the making is interrupted, it
// begins anew.
Result<> make_store(const StoreOptions& options) {
  const std::string& folder = options.folder;
  TRY(make_folder(folder + "/blobs"));
  TRY_ASSIGN(const io::Fd blobs, io::open_at(AT_FDCWD, folder + "/blobs", O_RDONLY | O_DIRECTORY));
  if (!exists(folder + "/meta")) {
    const std::string aside = folder + "/meta.new";
    std::error_code error;
    std::filesystem::remove_all(aside, error);
    TRY(make_folder(aside));
    {
      Index::Options index_options;
      index_options.folder = aside;
      index_options.durable_file = folder + "/durable";
      index_options.blobs_fd = blobs.get();
      index_options.create = true;
      TRY_ASSIGN(const auto index, Index::open(index_options));
      TRY(fill_new_index(*index, options));
    }
    if (::rename(aside.c_str(), (folder + "/meta").c_str()) != 0) return last_error(aside);
    TRY_ASSIGN(const io::Fd parent, io::open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY));
    TRY(io::fsync_fd(parent.get()));
  }
  const nlohmann::json config = {{"format", kFormat}, {"id", new_id()}, {"created", now().tv_sec}};
  TRY(io::replace_file(folder + "/config.json", config.dump(2) + "\n"));
  log::info("{}: made a new store", folder);
  return success();
}

// Only the daemon's user can read blobs. Two users in turn would each make files that the other cannot read.
Result<> refuse_others_store(int blobs_fd, const std::string& folder) {
  TRY_ASSIGN(const struct stat st, io::stat_fd(blobs_fd));
  if (st.st_uid == ::geteuid()) return success();
  return Error(EPERM,
               folder + ": this store belongs to uid " + std::to_string(st.st_uid) +
                   ", and its files are readable by that user alone; mount it as that user, or make it yours for "
                   "good: chown -R " +
                   std::to_string(::geteuid()) + " " + folder);
}

// May a store be made here? The folder must be empty, except for what an interrupted making leaves.
bool may_become_store(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const bool ours = name == "blobs" || name == "meta" || name == "meta.new" || name == "durable" || name == "lock" ||
                      name == "lost+found" || name == "config.json.new";
    if (!ours) return false;
  }
  return !error && is_empty(folder + "/blobs");
}

Result<io::Fd> take_lock(const std::string& folder) {
  TRY_ASSIGN(io::Fd fd, io::open_at(AT_FDCWD, folder + "/lock", O_RDWR | O_CREAT));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    const auto owner = io::read_file(folder + "/lock");
    return Error(EBUSY, folder + ": the store is in use by another ckptfs (pid " +
                            (owner ? owner.value().substr(0, owner.value().find('\n')) : "unknown") +
                            "); unmount it first");
  }
  // Written over what is there, since a full store has no block for it.
  const std::string pid = std::to_string(::getpid()) + "\n";
  TRY(io::write_full(fd.get(), std::as_bytes(std::span(pid)), 0));
  if (::ftruncate(fd.get(), static_cast<off_t>(pid.size())) != 0) return last_error(folder + "/lock");
  return fd;
}

// Releases ballast if the store is too full to be opened.
void make_room_to_open(const std::string& folder) {
  constexpr uint64_t kRoomToOpen = uint64_t{16} << 20;
  struct statvfs fs {};
  if (::statvfs(folder.c_str(), &fs) != 0 || uint64_t{fs.f_bavail} * fs.f_frsize >= kRoomToOpen) return;
  Ballast ballast(folder + "/meta");
  if (!ballast.release(Ballast::Part::any_change)) ballast.release(Ballast::Part::removals);
}

// Tries out what the file system can do. A store is only made where blocks can be shared. So in an old store that has
// no room to try it, sharing is taken for granted.
Result<io::SharingCapability> capability_of(const std::string& folder, bool fresh) {
  auto tried = io::probe_sharing(folder);
  if (tried || fresh || tried.error().errno_value() != ENOSPC) return tried;
  log::warn("{}: no room to try whether blocks can be shared: {}", folder, tried.error().message());
  io::SharingCapability believed;
  TRY_ASSIGN(believed.filesystem, io::filesystem_of(folder));
  believed.clone = true;
  return believed;
}

// To go on with blobs that have content, but without an index, would lose the blobs.
Result<> refuse_lost_index(const std::string& folder) {
  if (exists(folder + "/meta/CURRENT")) return success();
  return Error(EIO, folder + "/meta: the index is missing or empty" +
                        (is_empty(folder + "/blobs") ? "" : " beside blobs/ with content") + "; " +
                        lost_index_advice());
}

}  // namespace

Result<std::string> read_store_id(const std::string& folder) {
  TRY_ASSIGN(const std::string text, io::read_file(folder + "/config.json"));
  const auto parsed = io::parse_json(text, {});
  const nlohmann::json config = parsed ? parsed.value() : nlohmann::json();
  if (!config.is_object() || !config.contains("format") || !config["format"].is_number_unsigned() ||
      !config.contains("id") || !config["id"].is_string()) {
    return Error(EIO, folder + "/config.json: it is damaged; restore it from a copy");
  }
  const auto format = config["format"].get<uint64_t>();
  if (format != kFormat) {
    return Error(EPROTONOSUPPORT, folder + ": the store has format version " + std::to_string(format) +
                                      ", this ckptfs knows version " + std::to_string(kFormat) +
                                      "; use the ckptfs that made it");
  }
  return config["id"].get<std::string>();
}

struct Store::Internals {
  // In the order that open() calls them.
  Result<> find_or_make(const StoreOptions& options);
  Result<> open_blobs(const StoreOptions& options);
  Result<> open_index();
  Result<> drop_frontiers() const;
  Result<std::vector<InodeNumber>> recover_tree();
  void start_services();
  Result<> reap(const std::vector<InodeNumber>& nameless_inodes);

  std::string folder;
  std::string id;
  io::Fd lock;
  io::Fd blobs_fd;
  RecoveryReport recovery;
  std::unique_ptr<Blobs> blobs;
  std::unique_ptr<Space> space;
  std::unique_ptr<Index> index;
  std::unique_ptr<Tree> tree;
  std::unique_ptr<Reaper> reaper;
  std::unique_ptr<SpareBlobs> spares;
  std::unique_ptr<Accounting> accounting;
  std::unique_ptr<PreallocationReclaimer> preallocation_reclaimer;
  NothingOpen nothing_open;
  std::atomic<OpenFiles*> open_files = &nothing_open;  // some of the above have threads
  io::Mutex save_mutex;
  std::vector<InodeNumber> unpurged;
};

// Takes the lock of the store that is there, or makes a store.
Result<> Store::Internals::find_or_make(const StoreOptions& options) {
  const bool fresh = !exists(folder + "/config.json");
  if (!fresh) {
    TRY_ASSIGN(lock, take_lock(folder));
    make_room_to_open(folder);
  }
  TRY_ASSIGN(const io::SharingCapability capability, capability_of(folder, fresh));
  if (!capability.clone) {
    return Error(EOPNOTSUPP, folder + ": it is on " + capability.filesystem +
                                 ", which cannot share blocks between files; choose a folder on XFS or btrfs, or let "
                                 "ckptfs make one: ckptfs mount --image SIZE STORE MOUNTPOINT");
  }
  if (fresh && (!options.create || !may_become_store(folder))) {
    return Error(EINVAL, folder +
                             ": it is no store (config.json is missing) and not empty; name a store, or an empty "
                             "folder to make one");
  }
  if (fresh) {
    TRY_ASSIGN(lock, take_lock(folder));
    TRY(make_store(options));
  }
  return success();
}

Result<> Store::Internals::open_blobs(const StoreOptions& options) {
  TRY_ASSIGN(id, read_store_id(folder));
  TRY(refuse_lost_index(folder));
  TRY_ASSIGN(blobs_fd, io::open_at(AT_FDCWD, folder + "/blobs", O_RDONLY | O_DIRECTORY));
  TRY(refuse_others_store(blobs_fd.get(), folder));
  blobs = std::make_unique<Blobs>(blobs_fd.get());
  io::Fd image;
  if (!options.image.empty()) {
    TRY_ASSIGN(image, io::open_at(AT_FDCWD, options.image, O_RDONLY));
  }
  space = std::make_unique<Space>(blobs_fd.get(), std::move(image));
  return success();
}

Result<> Store::Internals::open_index() {
  Index::Options index_options;
  index_options.folder = folder + "/meta";
  index_options.durable_file = folder + "/durable";
  index_options.blobs_fd = blobs_fd.get();
  TRY_ASSIGN(index, Index::open(index_options));
  TRY_ASSIGN(const uint64_t format, index->number(kFormatKey));
  if (format != kFormat)
    return Error(EPROTONOSUPPORT, folder + "/meta: the index has format version " + std::to_string(format) +
                                      ", this ckptfs knows version " + std::to_string(kFormat));
  return drop_frontiers();
}

// Before 0.1.0 was released, STORE/frontiers had where copies ended that were under way, and the mode of their blobs
// said so. After a crash of such a version it alone can cut them there.
Result<> Store::Internals::drop_frontiers() const {
  const std::string frontiers = folder + "/frontiers";
  if (!exists(frontiers)) return success();
  TRY_ASSIGN(const std::vector<BlobNumber> numbers, blobs->list());
  for (const BlobNumber number : numbers) {
    TRY_ASSIGN(const struct stat st, blobs->stat(number));
    if ((st.st_mode & S_ISVTX) == 0) continue;
    return Error(EPROTONOSUPPORT,
                 folder +
                     ": an older ckptfs was copying files in it when it was killed; mount it with that "
                     "version once, unmount it, and then use this version");
  }
  if (::unlink(frontiers.c_str()) != 0) return last_error(frontiers);
  return success();
}

// Recovers the tree. Returns the inodes without a name that the last daemon left.
Result<std::vector<InodeNumber>> Store::Internals::recover_tree() {
  TRY_ASSIGN(Recovery found, recover(*index, *blobs, *space));
  found.start.doomed = [this](BlobNumber blob) { reaper->doom(blob); };
  found.start.entry_added = [this](InodeNumber parent, const DirectoryEntry& entry) {
    note_entry(*tree, parent, entry);
  };
  found.start.directory_renamed = [this](InodeNumber directory) { note_directory(*tree, directory); };
  recovery = found.report;
  tree = std::make_unique<Tree>(*index, *blobs, *space, std::move(found.start));
  TRY(tree->write_back().load(recovery.clean));
  reaper = std::make_unique<Reaper>(*index, *blobs, *space, tree->write_back());
  reaper->doom(found.dead);
  TRY(index->for_each_step([this](InodeNumber step, const StepRecord& record) -> Result<> {
    if (record.pinned) tree->note_pinned(step);
    return success();
  }));
  return std::move(found.nameless);
}

// Starts what has threads or asks about open files.
void Store::Internals::start_services() {
  spares = std::make_unique<SpareBlobs>(*tree, *blobs);
  accounting = std::make_unique<Accounting>(
      *tree, *index, *blobs, [this](InodeNumber inode) { return open_files.load()->open_for_writing(inode); });
  preallocation_reclaimer = std::make_unique<PreallocationReclaimer>(*space, kReclaimInterval, [this] {
    tree->write_back().prune([this](InodeNumber inode) { return open_files.load()->open_for_writing(inode); });
  });
}

Result<> Store::Internals::reap(const std::vector<InodeNumber>& nameless_inodes) {
  for (const InodeNumber nameless : nameless_inodes) {
    TRY_ASSIGN(const bool full, index->has_entries(nameless));
    if (full) {
      unpurged.push_back(nameless);
    } else {
      tree->reap(nameless);
    }
  }
  return success();
}

Result<std::unique_ptr<Store>> Store::open(const StoreOptions& options) {
  if (options.create) TRY(make_folder(options.folder));
  auto in = std::make_unique<Internals>();
  in->folder = options.folder;
  TRY(in->find_or_make(options));
  TRY(in->open_blobs(options));
  TRY(in->open_index());
  TRY_ASSIGN(const auto nameless, in->recover_tree());
  in->start_services();
  TRY(in->reap(nameless));
  for (const InodeNumber damaged : in->tree->damaged_files()) {
    log::error("{}: its data is missing", in->tree->path_of(damaged));
  }
  const bool few = in->recovery.inodes <= options.inspected_at_once;
  std::unique_ptr<Store> store(new Store(std::move(in)));
  if (!few) return store;
  if (const auto inspected = store->inspect([] { return true; }); !inspected) {
    log::error("not all files were inspected, which is tried again: {}", inspected.error().message());
  }
  return store;
}

Store::Store(std::unique_ptr<Internals> internals) : internals_(std::move(internals)) {}

Store::~Store() = default;

Result<> Store::inspect(const std::function<bool()>& go_on) {
  return meta::inspect(*internals_->tree, *internals_->index, *internals_->blobs, go_on);
}

Result<> Store::close() {
  internals_->spares->stop();
  internals_->reaper->stop();
  TRY(io::fault_point("store.close"));
  // Data first: writes through passthrough that nobody synced are still in the page cache.
  TRY(internals_->tree->write_back().sync_all());
  TRY(internals_->tree->write_back().check_all());  // the program that was told of a failure may have ended since
  // A start inspects files only after an end that was not clean. So with damaged files, or before the inspection has
  // ended, the end is not marked as clean: the next start must find these files again.
  TRY_ASSIGN(const uint64_t generation, internals_->index->generation());
  Batch batch(*internals_->index);
  const Tree& tree = *internals_->tree;
  if (tree.is_inspected() && tree.damaged_files().empty()) batch.put_number(kCleanKey, 1);
  batch.put_number(kGenerationKey, generation + 1);
  batch.allow_on_full_store();
  TRY(internals_->index->commit(std::move(batch)));
  TRY(internals_->index->sync());
  return internals_->index->ballast().spend_on([&] { return internals_->blobs->set_generation(generation + 1); });
}

Tree& Store::tree() const { return *internals_->tree; }
Index& Store::index() const { return *internals_->index; }
const std::string& Store::folder() const { return internals_->folder; }
const std::string& Store::id() const { return internals_->id; }
const Blobs& Store::blobs() const { return *internals_->blobs; }
SpareBlobs& Store::spares() const { return *internals_->spares; }
Accounting& Store::accounting() const { return *internals_->accounting; }
const RecoveryReport& Store::recovery() const { return internals_->recovery; }

const std::vector<InodeNumber>& Store::unpurged() const { return internals_->unpurged; }
io::Mutex& Store::save_mutex() { return internals_->save_mutex; }

SpaceReport Store::space() const {
  auto report = internals_->space->report();
  if (!report) {
    log::error("{}", report.error().message());
    return {};
  }
  report.value().ballast = internals_->index->ballast().bytes();
  return report.value();
}

void Store::set_open_files(OpenFiles* open_files) {
  internals_->open_files = open_files != nullptr ? open_files : &internals_->nothing_open;
}
OpenFiles& Store::open_files() const { return *internals_->open_files; }

}  // namespace ckptfs::meta
