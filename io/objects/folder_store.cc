#include "io/objects/folder_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <vector>

#include "io/fault.h"
#include "io/fd.h"

namespace ckptfs::io {
namespace {

constexpr size_t kPage = 1000;                          // objects
constexpr size_t kMostSynced = 10'000;                  // folders
constexpr size_t kPiece = size_t{1} << 20;              // of a write
constexpr mode_t kFolderMode = 0777, kFileMode = 0666;  // less the umask: other users of the remote read and write here

std::string temporary_beside(const std::string& path) {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) number = static_cast<uint64_t>(::getpid());
  char name[40];
  std::snprintf(name, sizeof(name), ".ckptfs-%016lx", static_cast<unsigned long>(number));
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

// What is in a folder; the name of a folder has a '/' at its end, so that all keys come in the order of their bytes.
Result<std::vector<std::string>> read_folder(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (!folder) return last_error();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const found = ::readdir(folder.get());
    if (found == nullptr) break;
    std::string name = found->d_name;
    if (name.front() == '.') continue;  // of a put, or none of ours
    struct stat facts {};
    unsigned char type = found->d_type;
    if (type == DT_UNKNOWN && ::fstatat(::dirfd(folder.get()), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0) {
      type = S_ISDIR(facts.st_mode) ? DT_DIR : S_ISREG(facts.st_mode) ? DT_REG : DT_LNK;
    }
    if (type == DT_DIR) name += '/';
    if (type == DT_DIR || type == DT_REG) {
      names.push_back(std::move(name));
    } else if (type != DT_UNKNOWN) {  // else it is gone
      return Error(EPROTO, name + " is neither a file nor a folder");
    }
  }
  if (errno != 0) return last_error();
  std::ranges::sort(names);
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
  return Error(why.errno_value(), url_ + "/" + key + ": " + what + ": " + why.message());
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
    if (synced_.contains(folder)) return success();
  }
  TRY(make_folders(folder));
  const std::string path = path_of(folder);
  if (::mkdir(path.c_str(), kFolderMode) != 0 && errno != EEXIST) return last_error();
  TRY(sync_parent(path));
  const MutexLock lock(mutex_);
  if (synced_.size() >= kMostSynced) synced_.clear();
  synced_.insert(folder);
  return success();
}

Result<> FolderStore::put(const std::string& key, const ObjectContent& content, PutMode mode,
                          const RequestLimits& limits) {
  TRY(check_key(key));
  ++counts_.puts;
  const std::string path = path_of(key);
  if (auto made = make_folders(key); !made) return failed(key, "cannot make its folder", made.error());
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

}  // namespace ckptfs::io
