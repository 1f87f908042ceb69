#include "io/objects/folder_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "io/fault.h"
#include "io/fd.h"

namespace ckptfs::io {
namespace {

constexpr size_t kPage = 1000;          // objects
constexpr size_t kMostSynced = 10'000;  // folders
// What was synced once may have been swept and made again since, by somebody who has not come to sync it. But nothing
// is swept that has changed so lately.
constexpr std::chrono::hours kSyncedFor{1};
constexpr std::string_view kTemporaryPrefix = ".ckptfs-";
constexpr size_t kPiece = size_t{1} << 20;              // of a write
constexpr mode_t kFolderMode = 0777, kFileMode = 0666;  // less the umask: other users of the remote read and write here

std::string temporary_beside(const std::string& path) {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) number = static_cast<uint64_t>(::getpid());
  char name[40];
  std::snprintf(name, sizeof(name), "%s%016lx", kTemporaryPrefix.data(), static_cast<unsigned long>(number));
  return path.substr(0, path.rfind('/') + 1) + name;
}

// A file of a temporary name, which goes with it.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }

  Result<> become(const std::string& path, PutMode mode) {
    if (mode == PutMode::replace) return ::rename(path_.c_str(), path.c_str()) == 0 ? success() : fails();
    if (::link(path_.c_str(), path.c_str()) == 0) return success();
    // NFS sends link(2) again when a reply is lost, and then it finds its own name there.
    if (errno == EEXIST) return is_same(path) ? success() : Result<>(Error(EEXIST));
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK) return fails();
    const int renamed = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE);
    return renamed == 0 ? success() : fails();
  }

 private:
  static Result<> fails() { return last_error(); }
  bool is_same(const std::string& path) const {
    struct stat ours {
    }, theirs{};
    return ::lstat(path_.c_str(), &ours) == 0 && ::lstat(path.c_str(), &theirs) == 0 && ours.st_dev == theirs.st_dev &&
           ours.st_ino == theirs.st_ino;
  }

  const std::string path_;
};

// Calls visit() with the name and the type of each that is in a folder; DT_UNKNOWN: it is gone meanwhile.
Result<> for_each_in_folder(const std::string& path,
                            const std::function<Result<>(std::string name, unsigned char type)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (!folder) return last_error();
  for (;;) {
    errno = 0;
    const dirent* const found = ::readdir(folder.get());
    if (found == nullptr) break;
    struct stat facts {};
    unsigned char type = found->d_type;
    if (type == DT_UNKNOWN && ::fstatat(::dirfd(folder.get()), found->d_name, &facts, AT_SYMLINK_NOFOLLOW) == 0) {
      type = S_ISDIR(facts.st_mode) ? DT_DIR : S_ISREG(facts.st_mode) ? DT_REG : DT_LNK;
    }
    TRY(visit(found->d_name, type));
  }
  return errno == 0 ? success() : Result<>(last_error());
}

// The objects and folders in a folder. The name of a folder has a '/' at its end, so that all keys come in the order of
// their bytes.
Result<std::vector<std::string>> read_folder(const std::string& path) {
  std::vector<std::string> names;
  TRY(for_each_in_folder(path, [&](std::string name, unsigned char type) -> Result<> {
    if (name.front() == '.' || type == DT_UNKNOWN) return success();  // the dot: of a put, or none of ours
    if (type != DT_DIR && type != DT_REG) return Error(EPROTO, name + " is neither a file nor a folder");
    if (type == DT_DIR) name += '/';
    names.push_back(std::move(name));
    return success();
  }));
  std::ranges::sort(names);
  return names;
}

// The temporary files and the folders in a folder.
Result<std::vector<std::string>> read_to_sweep(const std::string& path) {
  std::vector<std::string> names;
  TRY(for_each_in_folder(path, [&](std::string name, unsigned char type) -> Result<> {
    const bool is_folder = type == DT_DIR && name.front() != '.';
    if (is_folder) name += '/';
    if (is_folder || (type == DT_REG && name.starts_with(kTemporaryPrefix))) names.push_back(std::move(name));
    return success();
  }));
  return names;
}

std::chrono::system_clock::time_point time_of(const timespec& time) {
  return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
      std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec)));
}

}  // namespace

Result<std::unique_ptr<ObjectStore>> FolderStore::open(const std::string& folder) {
  return std::unique_ptr<ObjectStore>(new FolderStore(folder));
}

Error FolderStore::failed(const std::string& key, const char* what, const Error& why) const {
  return with_name(url_ + "/" + key + ": " + what, why);
}

Result<> FolderStore::check_limits(const std::string& key, const RequestLimits& limits) const {
  if (limits.is_stopped()) return Error(ECANCELED);
  if (std::chrono::steady_clock::now() > limits.deadline) {
    return Error(ETIMEDOUT, url_ + "/" + key + ": the folder takes too long");
  }
  return success();
}

Result<> FolderStore::check_folder() const {
  if (::access(folder_.c_str(), F_OK) == 0) return success();
  if (errno != ENOENT) return last_error(folder_);
  return Error(ESTALE, "there is no folder " + folder_ + ": is its file system mounted?");
}

Result<> FolderStore::make_folders(const std::string& key) {
  const size_t slash = key.rfind('/');
  if (slash == std::string::npos) return check_folder();
  const std::string folder = key.substr(0, slash);
  {
    const MutexLock lock(mutex_);
    if (std::chrono::steady_clock::now() - synced_since_ > kSyncedFor) synced_.clear();
    if (synced_.contains(folder)) return success();
  }
  TRY(make_folders(folder));
  const std::string path = path_of(folder);
  if (::mkdir(path.c_str(), kFolderMode) != 0 && errno != EEXIST) return last_error();
  TRY(sync_parent(path));
  const MutexLock lock(mutex_);
  if (synced_.size() >= kMostSynced) synced_.clear();
  if (synced_.empty()) synced_since_ = std::chrono::steady_clock::now();
  synced_.insert(folder);
  return success();
}

Result<> FolderStore::put(const std::string& key, const ObjectContent& content, PutMode mode,
                          const RequestLimits& limits) {
  TRY(check_key(key));
  ++counts_.puts;
  const std::string path = path_of(key);
  if (auto made = make_folders(key); !made) {
    forget_folders();  // somebody may have removed one
    return failed(key, "cannot make its folder", made.error());
  }
  Temporary temporary(temporary_beside(path));
  auto file = open_at(AT_FDCWD, temporary.path(), O_CREAT | O_EXCL | O_WRONLY, kFileMode);
  if (!file && file.error().errno_value() == EEXIST) return failed(key, "cannot be made", Error(EAGAIN));
  if (!file && file.error().errno_value() == ENOENT) forget_folders();  // somebody has removed them
  if (!file) return failed(key, "cannot be made", file.error());
  TRY(write(file.value().get(), key, content, limits));
  if (auto synced = fsync_fd(file.value().get()); !synced) return failed(key, "cannot be synced", synced.error());
  TRY(fault_point("folder_store.written"));
  const auto named = temporary.become(path, mode);
  const bool there = !named && named.error().errno_value() == EEXIST;
  if (!named && !there) return failed(key, "cannot be named", named.error());
  // Also for an object that is there already: whoever has made it may not have come to that.
  if (auto synced = sync_parent(path); !synced) return failed(key, "its folder cannot be synced", synced.error());
  if (there) return Error(EEXIST, url_ + "/" + key + " is there already");
  return success();
}

void FolderStore::forget_folders() {
  const MutexLock lock(mutex_);
  synced_.clear();
}

Result<> FolderStore::write(int file, const std::string& key, const ObjectContent& content,
                            const RequestLimits& limits) {
  std::vector<std::byte> piece(std::min<uint64_t>(content.size, kPiece));
  for (uint64_t offset = 0; offset < content.size; offset += piece.size()) {
    TRY(check_limits(key, limits));
    piece.resize(std::min<uint64_t>(piece.size(), content.size - offset));
    TRY(content.read(offset, piece));
    if (auto written = write_full(file, piece, static_cast<off_t>(offset)); !written) {
      return failed(key, "cannot be written", written.error());
    }
    counts_.bytes_sent += piece.size();
  }
  return success();
}

Result<size_t> FolderStore::get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                                const RequestLimits& limits) {
  TRY(check_key(key));
  TRY(check_limits(key, limits));
  ++counts_.gets;
  auto file = open_at(AT_FDCWD, path_of(key), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!file && file.error().errno_value() == ENOENT) TRY(check_folder());
  if (!file) return failed(key, "cannot be opened", file.error());
  TRY_ASSIGN(const struct stat facts, stat_fd(file.value().get()));
  if (!S_ISREG(facts.st_mode)) return failed(key, "cannot be read", Error(EPROTO, "it is no file"));
  auto got = read_full(file.value().get(), buffer, static_cast<off_t>(offset));
  if (!got) return failed(key, "cannot be read", got.error());
  counts_.bytes_received += got.value();
  return got;
}

Result<ObjectPage> FolderStore::list(const std::string& prefix, const std::string& token, const RequestLimits& limits) {
  TRY(check_prefix(prefix));
  TRY(check_folder());
  ++counts_.lists;
  ObjectPage page;
  TRY_ASSIGN(const bool whole, list_folder(prefix, token, page, limits));
  if (!whole) page.next = page.objects.back().key;
  return page;
}

Result<bool> FolderStore::list_folder(const std::string& key, const std::string& token, ObjectPage& page,
                                      const RequestLimits& limits) {
  TRY(check_limits(key, limits));
  const auto names = read_folder(path_of(key));
  if (!names && names.error().errno_value() == ENOENT) return true;
  if (!names) return failed(key, "cannot be listed", names.error());
  for (const std::string& name : names.value()) {
    const std::string found = key + name;
    if (found <= token && !token.starts_with(found)) continue;
    if (page.objects.size() == kPage) return false;
    if (name.ends_with('/')) {
      TRY_ASSIGN(const bool whole, list_folder(found, token, page, limits));
      if (!whole) return false;
    } else if (found > token) {
      const auto facts = stat_at(AT_FDCWD, path_of(found));
      if (!facts && facts.error().errno_value() == ENOENT) continue;
      if (!facts) return failed(found, "cannot be looked at", facts.error());
      page.objects.push_back({found, static_cast<uint64_t>(facts.value().st_size), time_of(facts.value().st_mtim)});
    }
  }
  return true;
}

Result<> FolderStore::remove(const std::string& key, const RequestLimits& limits) {
  TRY(check_key(key));
  TRY(check_limits(key, limits));
  TRY(check_folder());
  ++counts_.removes;
  const std::string path = path_of(key);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return failed(key, "cannot be removed", last_error());
  return success();
}

// By the clock of the file system: what time a file gets that is made now.
Result<FolderStore::Time> FolderStore::time_there() const {
  const Temporary temporary(temporary_beside(path_of("now")));
  TRY_ASSIGN(const Fd file, open_at(AT_FDCWD, temporary.path(), O_CREAT | O_EXCL | O_WRONLY, kFileMode));
  TRY_ASSIGN(const struct stat facts, stat_fd(file.get()));
  return time_of(facts.st_mtim);
}

Result<uint64_t> FolderStore::sweep(const std::string& prefix, std::chrono::seconds older_than,
                                    const RequestLimits& limits) {
  TRY(check_prefix(prefix));
  TRY(check_folder());
  const auto now = time_there();
  if (!now) return failed("", "its clock cannot be read", now.error());
  return sweep_folder(prefix, now.value() - older_than, limits);
}

// What others remove, or put, at that moment is no error.
Result<uint64_t> FolderStore::sweep_folder(const std::string& key, Time before, const RequestLimits& limits) const {
  TRY(check_limits(key, limits));
  const auto swept = read_to_sweep(path_of(key));
  if (!swept && swept.error().errno_value() == ENOENT) return uint64_t{0};
  if (!swept) return failed(key, "cannot be listed", swept.error());
  uint64_t removed = 0;
  for (const std::string& name : swept.value()) {
    const std::string path = path_of(key + name);
    const bool is_folder = name.ends_with('/');
    // Looked at first: what is removed in it makes it younger.
    const auto facts = stat_at(AT_FDCWD, is_folder ? path.substr(0, path.size() - 1) : path);
    if (!facts && facts.error().errno_value() == ENOENT) continue;
    if (!facts) return failed(key + name, "cannot be looked at", facts.error());
    if (is_folder) {
      TRY_ASSIGN(const uint64_t within, sweep_folder(key + name, before, limits));
      removed += within;
    }
    if (time_of(facts.value().st_mtim) > before) continue;
    if (::unlinkat(AT_FDCWD, path.c_str(), is_folder ? AT_REMOVEDIR : 0) == 0) {
      ++removed;
    } else if (errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST) {
      return failed(key + name, "cannot be removed", last_error());
    }
  }
  return removed;
}

}  // namespace ckptfs::io
