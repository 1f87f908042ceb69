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

#include "io/digest.h"
#include "io/fault.h"
#include "io/fd.h"
#include "io/printable.h"
#include "io/text.h"

namespace ckptfs::io {
namespace {

constexpr size_t kPage = 1000;          // objects
constexpr size_t kMostSynced = 10'000;  // folders
// What was synced once may have been removed and made again since, by somebody who has not come to sync it. But of what
// is made again, nothing is removed that has changed so lately (collector.cc).
constexpr std::chrono::hours kSyncedFor{1};
constexpr const char *kUploads = ".ckptfs-uploads", *kOwnPrefix = ".ckptfs/";
constexpr size_t kLongestPath = 4095;
constexpr size_t kPiece = size_t{1} << 20;              // of a write
constexpr mode_t kFolderMode = 0777, kFileMode = 0666;  // less the umask: other users of the remote read and write here

std::string new_name() {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) number = static_cast<uint64_t>(::getpid());
  char name[20];
  std::snprintf(name, sizeof(name), "%016lx", static_cast<unsigned long>(number));
  return name;
}

bool is_same_file(const std::string& one, const std::string& other) {
  struct stat ours {
  }, theirs{};
  return ::lstat(one.c_str(), &ours) == 0 && ::lstat(other.c_str(), &theirs) == 0 && ours.st_dev == theirs.st_dev &&
         ours.st_ino == theirs.st_ino;
}

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
    const std::string name = found->d_name;
    if (name != "." && name != "..") TRY(visit(name, type));
  }
  return errno == 0 ? success() : Result<>(last_error());
}

// The objects and folders in a folder. The name of a folder has a '/' at its end, so that all keys come in the order of
// their bytes.
Result<std::vector<std::string>> read_folder(const std::string& path, bool at_root) {
  std::vector<std::string> names;
  TRY(for_each_in_folder(path, [&](std::string name, unsigned char type) -> Result<> {
    if ((at_root && !check_key(name)) || type == DT_UNKNOWN) return success();  // the former: none of ours
    if (type != DT_DIR && type != DT_REG) return success();  // as a link to a step, that somebody has made
    if (type == DT_DIR) name += '/';
    names.push_back(std::move(name));
    return success();
  }));
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

// A file in kUploads, which goes with this unless it is kept.
class FolderStore::Temporary {
 public:
  Temporary(std::string path, Fd file) : path_(std::move(path)), file_(std::move(file)) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  int file() const { return file_.get(); }
  const std::string& path() const { return path_; }
  void keep() { path_.clear(); }

  Result<> become(const std::string& path, PutMode mode) {
    if (mode == PutMode::replace) return ::rename(path_.c_str(), path.c_str()) == 0 ? success() : fails();
    if (::link(path_.c_str(), path.c_str()) == 0) return success();
    // NFS sends link(2) again when a reply is lost, and then it finds its own name there.
    if (errno == EEXIST) return is_same_file(path_, path) ? success() : Result<>(Error(EEXIST));
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK) return fails();
    const int renamed = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE);
    return renamed == 0 ? success() : fails();
  }

 private:
  static Result<> fails() { return last_error(); }

  std::string path_;
  const Fd file_;
};

Result<std::unique_ptr<FolderStore::Temporary>> FolderStore::make_temporary(const std::string& key) const {
  if (auto there = check_folder(); !there) return failed(key, "cannot be made", there.error());
  const std::string folder = folder_ + "/" + kUploads;
  if (::mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST) return failed(key, "cannot be made", last_error());
  const std::string path = folder + "/" + new_name();
  auto file = open_at(AT_FDCWD, path, O_CREAT | O_EXCL | O_RDWR, kFileMode);
  if (!file && file.error().errno_value() == EEXIST) return failed(key, "cannot be made", Error(EAGAIN));
  if (!file) return failed(key, "cannot be made", file.error());
  return std::make_unique<Temporary>(path, std::move(file).value());
}

Result<> FolderStore::publish(Temporary& temporary, const std::string& key, PutMode mode) {
  if (auto made = make_folders(key); !made) {
    forget_folders();  // somebody may have removed one
    return failed(key, "cannot make its folder", made.error());
  }
  if (auto synced = fsync_fd(temporary.file()); !synced) return failed(key, "cannot be synced", synced.error());
  TRY(fault_point("folder_store.written"));
  const std::string path = path_of(key);
  const auto named = temporary.become(path, mode);
  const bool there = !named && named.error().errno_value() == EEXIST;
  if (!named && named.error().errno_value() == ENOENT) forget_folders();  // somebody has removed them
  if (!named && !there) return failed(key, "cannot be named", named.error());
  // Also for an object that is there already: whoever has made it may not have come to that.
  if (auto synced = sync_parent(path); !synced) return failed(key, "its folder cannot be synced", synced.error());
  if (there) return Error(EEXIST, url_ + "/" + key + " is there already");
  return success();
}

Result<> FolderStore::put(const std::string& key, const ObjectContent& content, PutMode mode,
                          const RequestLimits& limits) {
  TRY(check_key(key));
  ++counts_.puts;
  TRY_ASSIGN(const auto temporary, make_temporary(key));
  TRY(write(temporary->file(), 0, key, content, limits));
  return publish(*temporary, key, mode);
}

void FolderStore::forget_folders() {
  const MutexLock lock(mutex_);
  synced_.clear();
}

Result<> FolderStore::write(int file, uint64_t at, const std::string& key, const ObjectContent& content,
                            const RequestLimits& limits) {
  std::vector<std::byte> piece(std::min<uint64_t>(content.size, kPiece));
  for (uint64_t offset = 0; offset < content.size; offset += piece.size()) {
    TRY(check_limits(key, limits));
    piece.resize(std::min<uint64_t>(piece.size(), content.size - offset));
    TRY(content.read(offset, piece));
    if (auto written = write_full(file, piece, static_cast<off_t>(at + offset)); !written) {
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

// Whoever may write to the remote may have put a link in a folder's place. What is listed may be removed, so no such
// link is followed out of the remote.
Result<> FolderStore::refuse_links(const std::string& prefix) const {
  for (size_t slash = prefix.find('/'); slash != std::string::npos; slash = prefix.find('/', slash + 1)) {
    const auto facts = stat_at(AT_FDCWD, path_of(prefix.substr(0, slash)));
    if (!facts && facts.error().errno_value() == ENOENT) return success();
    if (!facts) return failed(prefix, "cannot be looked at", facts.error());
    if (!S_ISDIR(facts.value().st_mode)) return failed(prefix, "cannot be listed", Error(EPROTO, "it is no folder"));
  }
  return success();
}

Result<ObjectPage> FolderStore::list(const std::string& prefix, const std::string& token, const RequestLimits& limits) {
  TRY(check_beginning(prefix));
  TRY(check_folder());
  const std::string folder = prefix.substr(0, prefix.rfind('/') + 1);
  TRY(refuse_links(folder));
  ++counts_.lists;
  ObjectPage page;
  TRY_ASSIGN(const bool whole, list_folder({folder, prefix}, token, page, limits));
  if (!whole) page.next = page.objects.back().key;
  return page;
}

Result<bool> FolderStore::list_folder(const Below& below, const std::string& token, ObjectPage& page,
                                      const RequestLimits& limits) {
  const std::string& key = below.folder;
  TRY(check_limits(key, limits));
  const auto names = read_folder(path_of(key), key.empty());
  if (!names && names.error().errno_value() == ENOENT) return true;
  const bool is_at_top = key.find('/') + 1 == key.size() && key != kOwnPrefix;
  if (!names && names.error().errno_value() == EACCES && is_at_top) return true;  // as "lost+found"
  if (!names) return failed(key, "cannot be listed", names.error());
  for (const std::string& name : names.value()) {
    const std::string found = key + name;
    if (!found.starts_with(below.prefix)) continue;
    if (found <= token && !token.starts_with(found)) continue;
    if (page.objects.size() == kPage) return false;
    if (name.ends_with('/')) {
      TRY_ASSIGN(const bool whole, list_folder({found, below.prefix}, token, page, limits));
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

// Shares the blocks where the file system can.
Result<> FolderStore::copy(const std::string& from, const std::string& to, uint64_t size, const RequestLimits& limits) {
  TRY(check_key(from));
  TRY(check_key(to));
  TRY(check_limits(to, limits));
  ++counts_.puts;
  const auto source = open_at(AT_FDCWD, path_of(from), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!source && source.error().errno_value() == ENOENT) TRY(check_folder());
  if (!source) return failed(from, "cannot be opened", source.error());
  TRY_ASSIGN(const struct stat facts, stat_fd(source.value().get()));
  if (!S_ISREG(facts.st_mode)) return failed(from, "cannot be read", Error(EPROTO, "it is no file"));
  if (static_cast<uint64_t>(facts.st_size) != size) return Error(ENOENT, url_ + "/" + from + " has another size");
  TRY_ASSIGN(const auto temporary, make_temporary(to));
  for (uint64_t at = 0; at < size;) {
    TRY(check_limits(to, limits));
    auto in = static_cast<off64_t>(at), out = in;
    const ssize_t copied = ::copy_file_range(source.value().get(), &in, temporary->file(), &out, size - at, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return failed(to, "cannot be copied", last_error());
    if (copied == 0) return Error(ENOENT, url_ + "/" + from + " became shorter");
    at += static_cast<uint64_t>(copied);
  }
  return publish(*temporary, to, PutMode::replace);
}

Result<Upload> FolderStore::begin_upload(const std::string& key, const RequestLimits& limits) {
  TRY(check_key(key));
  TRY(check_limits(key, limits));
  ++counts_.puts;
  TRY_ASSIGN(const auto temporary, make_temporary(key));
  const std::string id = temporary->path().substr(temporary->path().rfind('/') + 1);
  temporary->keep();
  return Upload{key, id};
}

Result<> FolderStore::check_fits(const std::string& key) const {
  if (folder_.size() + 1 + key.size() <= kLongestPath) return success();
  return Error(EINVAL, printable(key) + ": its name is too long for a file in " + folder_ + "; rename or remove it");
}

Result<Fd> FolderStore::open_upload(const Upload& upload) const {
  auto file = open_at(AT_FDCWD, folder_ + "/" + kUploads + "/" + upload.id, O_RDWR | O_NOFOLLOW);
  if (!file && file.error().errno_value() == ENOENT) TRY(check_folder());
  if (!file) return failed(upload.key, "its upload cannot be opened", file.error());
  return file;
}

Result<std::string> FolderStore::put_piece(const Upload& upload, uint32_t /*number*/, uint64_t offset,
                                           const ObjectContent& content, const RequestLimits& limits) {
  ++counts_.puts;
  TRY_ASSIGN(const Fd file, open_upload(upload));
  Hasher hasher;
  const ObjectContent hashed{content.size, [&](uint64_t at, std::span<std::byte> buffer) -> Result<> {
                               TRY(content.read(at, buffer));
                               hasher.add(buffer);
                               return success();
                             }};
  TRY(write(file.get(), offset, upload.key, hashed, limits));
  if (auto synced = fdatasync_fd(file.get()); !synced) return failed(upload.key, "cannot be synced", synced.error());
  return std::to_string(content.size) + " " + hex_of(hasher.finish());
}

// Does the file hold what was put into it, by what put_piece() has returned?
Result<bool> FolderStore::holds_pieces(int file, const std::vector<std::string>& pieces,
                                       const RequestLimits& limits) const {
  std::vector<std::byte> buffer(kPiece);
  uint64_t at = 0;
  for (const std::string& piece : pieces) {
    const size_t space = std::min(piece.find(' '), piece.size());
    const auto size = parse_number<uint64_t>(std::string_view(piece).substr(0, space));
    if (!size) return false;
    Hasher hasher;
    for (const uint64_t end = at + *size; at < end;) {
      TRY(check_limits(kUploads, limits));
      const auto wanted = std::span(buffer).first(std::min<uint64_t>(buffer.size(), end - at));
      TRY_ASSIGN(const size_t got, read_full(file, wanted, static_cast<off_t>(at)));
      if (got < wanted.size()) return false;
      hasher.add(wanted);
      at += got;
    }
    if (piece.substr(space + 1) != hex_of(hasher.finish())) return false;
  }
  return true;
}

Result<> FolderStore::complete_upload(const Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                                      const RequestLimits& limits) {
  TRY(check_key(upload.key));
  ++counts_.puts;
  auto file = open_upload(upload);
  if (!file && file.error().errno_value() == ENOENT) {
    TRY_ASSIGN(const bool there, has_size(*this, upload.key, size, limits));
    return there ? sync_parent(path_of(upload.key)) : Result<>(file.error());
  }
  TRY(file);
  TRY_ASSIGN(const struct stat facts, stat_fd(file.value().get()));
  bool whole = static_cast<uint64_t>(facts.st_size) == size;
  if (whole && upload.is_known) {
    TRY_ASSIGN(whole, holds_pieces(file.value().get(), pieces, limits));
  }
  if (!whole) return failed(upload.key, "its upload", Error(ENOENT, "lacks what was put into it"));
  Temporary temporary(folder_ + "/" + kUploads + "/" + upload.id, std::move(file).value());
  auto published = publish(temporary, upload.key, PutMode::replace);
  temporary.keep();
  return published;
}

// By the clock of the file system: what time a file gets that is made now.
Result<FolderStore::Time> FolderStore::time_there() const {
  TRY_ASSIGN(const auto temporary, make_temporary("now"));
  TRY_ASSIGN(const struct stat facts, stat_fd(temporary->file()));
  return time_of(facts.st_mtim);
}

// What others remove at that moment is no error.
Result<uint64_t> FolderStore::end_uploads(std::chrono::seconds older_than, const RequestLimits& limits) {
  TRY(check_limits(kUploads, limits));
  const auto now = time_there();
  if (!now) return failed("", "its clock cannot be read", now.error());
  const std::string folder = folder_ + "/" + kUploads + "/";
  std::vector<std::string> names;
  const auto listed = for_each_in_folder(folder, [&](const std::string& name, unsigned char type) -> Result<> {
    if (type == DT_REG) names.push_back(name);
    return success();
  });
  if (!listed) return failed(kUploads, "cannot be listed", listed.error());
  uint64_t ended = 0;
  for (const std::string& name : names) {
    TRY(check_limits(kUploads, limits));
    const auto facts = stat_at(AT_FDCWD, folder + name);
    if (!facts && facts.error().errno_value() == ENOENT) continue;
    if (!facts) return failed(name, "cannot be looked at", facts.error());
    if (time_of(facts.value().st_mtim) > now.value() - older_than) continue;
    if (::unlink((folder + name).c_str()) == 0) {
      ++ended;
    } else if (errno != ENOENT) {
      return failed(name, "cannot be removed", last_error());
    }
  }
  return ended;
}

Result<uint64_t> FolderStore::remove_empty_folders(const std::string& prefix, std::chrono::seconds older_than,
                                                   const RequestLimits& limits) {
  TRY(check_prefix(prefix));
  TRY(check_folder());
  TRY(refuse_links(prefix));
  const auto now = time_there();
  if (!now) return failed("", "its clock cannot be read", now.error());
  return remove_if_empty(prefix, now.value() - older_than, limits);
}

Result<uint64_t> FolderStore::remove_if_empty(const std::string& key, Time before, const RequestLimits& limits) {
  TRY(check_limits(key, limits));
  const std::string path = path_of(key);
  const auto facts = stat_at(AT_FDCWD, path);  // first: what is removed in it makes it younger
  if (!facts && facts.error().errno_value() == ENOENT) return uint64_t{0};
  if (!facts) return failed(key, "cannot be looked at", facts.error());
  std::vector<std::string> folders;
  const auto listed = for_each_in_folder(path, [&](const std::string& name, unsigned char type) -> Result<> {
    if (type == DT_DIR) folders.push_back(key + name + "/");
    return success();
  });
  if (!listed) return failed(key, "cannot be listed", listed.error());
  uint64_t removed = 0;
  for (const std::string& folder : folders) {
    TRY_ASSIGN(const uint64_t within, remove_if_empty(folder, before, limits));
    removed += within;
  }
  const bool is_old = time_of(facts.value().st_mtim) <= before;
  if (key.empty() || !is_old || ::rmdir(path.c_str()) != 0) return removed;
  forget_folders();
  return removed + 1;
}

}  // namespace ckptfs::io
