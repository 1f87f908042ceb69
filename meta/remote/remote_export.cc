// export_step().
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "io/fault.h"
#include "io/fd.h"
#include "io/parallel.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/layout.h"
#include "meta/remote/remote_step.h"

namespace ckptfs::meta::remote {
namespace {

constexpr uint64_t kExportedAtOnce = uint64_t{16} << 20;
constexpr mode_t kFileBits = 0777, kFolderBits = 03777;

// A piece of a file.
struct ExportJob {
  const UnionEntry* file = nullptr;
  uint64_t offset = 0;
};

// The folder in which the step is made; it is removed unless it got its name.
class PartialFolder {
 public:
  static Result<std::unique_ptr<PartialFolder>> make(const std::string& target) {
    const std::filesystem::path path(target);
    auto folder = std::unique_ptr<PartialFolder>(
        new PartialFolder(target, (path.parent_path() / fmt::format(".ckptfs-{}.partial", new_id())).string()));
    if (::mkdir(folder->path_.c_str(), 0700) != 0) {
      const Error why = last_error(target);
      folder->path_.clear();
      return why;
    }
    TRY_ASSIGN(folder->fd_, io::open_at(AT_FDCWD, folder->path_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    return folder;
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder() {
    std::error_code ignored;  // the error that led here is the one to tell
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  int fd() const { return fd_.get(); }

  Result<> publish() {
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) != 0) {
      // NFS and others do not have RENAME_NOREPLACE; rename(2) replaces no folder but an empty one.
      if (errno != EINVAL && errno != ENOSYS) return last_error(target_);
      if (::access(target_.c_str(), F_OK) == 0) return Error(EEXIST, target_ + ": it is there already");
      if (::rename(path_.c_str(), target_.c_str()) != 0) return last_error(target_);
    }
    path_.clear();
    return io::sync_parent(target_);
  }

 private:
  PartialFolder(std::string target, std::string path) : target_(std::move(target)), path_(std::move(path)) {}

  const std::string target_;
  std::string path_;  // empty: it is not there, or has its name
  io::Fd fd_;
};

class Exporter {
 public:
  Exporter(const RemoteStep& step, const Union& files, int folder, const ReadSettings& settings)
      : step_(step), files_(files), folder_(folder), settings_(settings) {}

  Result<> run() {
    TRY(make_all());
    TRY(io::for_each_parallel(jobs_.size(), settings_.parallel, [this](size_t i) { return fill(jobs_[i]); }));
    TRY(io::for_each_parallel(files_.entries.size(), settings_.parallel, [this](size_t i) { return finish_file(i); }));
    // What is in a folder comes before it, since it changes the folder's time.
    for (auto one = files_.entries.rbegin(); one != files_.entries.rend(); ++one) TRY(finish_folder(*one));
    return success();
  }

 private:
  using Kind = Entry::Kind;

  static const char* path_of(const UnionEntry& one) { return one.path.empty() ? "." : one.path.c_str(); }
  Result<> check_stop() const {
    const bool stopped = settings_.stop != nullptr && settings_.stop->load(std::memory_order_relaxed);
    return stopped ? Result<>(Error(ECANCELED, "the export was stopped")) : success();
  }
  Result<io::Fd> open(const UnionEntry& one, int flags) const {
    auto opened = io::open_at(folder_, path_of(one), flags | O_NOFOLLOW);
    if (!opened) return error_in(io::printable(one.path), Error(opened.error().errno_value()));
    return opened;
  }

  // Makes everything, with no content yet. A folder comes before what is in it.
  Result<> make_all() {
    for (const UnionEntry& one : files_.entries) {
      TRY(check_stop());
      TRY(make(one));
    }
    return success();
  }
  Result<> make(const UnionEntry& one) {
    const Entry& entry = step_.entry(one);
    const auto fails = [&] { return last_error(io::printable(one.path)); };
    if (entry.kind == Kind::folder) {
      const bool made = one.path.empty() || ::mkdirat(folder_, one.path.c_str(), 0700) == 0;
      return made ? success() : Result<>(fails());
    }
    if (entry.kind == Kind::link) {
      return ::symlinkat(entry.target.c_str(), folder_, one.path.c_str()) == 0 ? success() : Result<>(fails());
    }
    TRY_ASSIGN(const io::Fd file, open(one, O_WRONLY | O_CREAT | O_EXCL));
    if (auto room = io::allocate(file.get(), entry.size); !room) return error_in(io::printable(one.path), room.error());
    for (uint64_t offset = 0; offset < entry.size; offset += kExportedAtOnce) jobs_.push_back({&one, offset});
    total_ += entry.size;
    return success();
  }

  Result<> fill(const ExportJob& job) {
    TRY(check_stop());
    const size_t size = std::min(kExportedAtOnce, step_.entry(*job.file).size - job.offset);
    const auto room = std::make_unique_for_overwrite<std::byte[]>(size);
    const std::span bytes(room.get(), size);
    TRY(step_.read(*job.file, job.offset, bytes, io::RequestLimits::within(settings_.time, settings_.stop)));
    TRY_ASSIGN(const io::Fd file, open(*job.file, O_WRONLY));
    if (auto written = io::write_full(file.get(), bytes, static_cast<off_t>(job.offset)); !written) {
      return error_in(io::printable(job.file->path), written.error());
    }
    settings_.progress({total_, done_ += size, job.file->path});
    return success();
  }

  Result<> finish_file(size_t index) {
    const UnionEntry& one = files_.entries[index];
    const Entry& entry = step_.entry(one);
    if (entry.kind == Kind::folder) return success();
    TRY(check_stop());
    if (entry.kind == Kind::link) return finish_link(one, entry);
    TRY_ASSIGN(const io::Fd file, open(one, O_WRONLY));
    return finish(file.get(), one, entry, kFileBits);
  }
  Result<> finish_folder(const UnionEntry& one) const {
    const Entry& entry = step_.entry(one);
    if (entry.kind != Kind::folder) return success();
    TRY_ASSIGN(const io::Fd folder, open(one, O_RDONLY | O_DIRECTORY));
    return finish(folder.get(), one, entry, kFolderBits);
  }

  static bool may_not(int outcome) { return outcome != 0 && (errno == EPERM || errno == EINVAL); }

  Result<> finish_link(const UnionEntry& one, const Entry& entry) const {
    const int owned = ::fchownat(folder_, one.path.c_str(), entry.uid, entry.gid, AT_SYMLINK_NOFOLLOW);
    const bool owner = owned == 0 || may_not(owned);
    const std::array<timespec, 2> times{entry.mtime, entry.mtime};
    if (owner && ::utimensat(folder_, one.path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) == 0) return success();
    return last_error(io::printable(one.path));
  }
  // Who may not set the owner keeps what he has made.
  static Result<> finish(int fd, const UnionEntry& one, const Entry& entry, mode_t bits) {
    const int owned = ::fchown(fd, entry.uid, entry.gid);
    const bool owner = owned == 0 || may_not(owned);
    const std::array<timespec, 2> times{entry.mtime, entry.mtime};
    if (!owner || ::fchmod(fd, entry.mode & bits) != 0 || ::futimens(fd, times.data()) != 0) {
      return last_error(io::printable(one.path));
    }
    if (auto synced = io::fsync_fd(fd); !synced) return error_in(io::printable(one.path), synced.error());
    return success();
  }

  const RemoteStep& step_;
  const Union& files_;
  const int folder_;
  const ReadSettings& settings_;
  std::vector<ExportJob> jobs_;
  uint64_t total_ = 0;
  std::atomic<uint64_t> done_{0};
};

// Without a '/' at its end.
std::string normal_path(const std::string& folder) {
  std::string path = std::filesystem::path(folder).lexically_normal().string();
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

Result<> export_step(const RemoteStep& step, std::optional<uint32_t> slot, const std::string& folder,
                     const ReadSettings& settings) {
  if (slot && *slot >= step.slots()) {
    return Error(EINVAL, fmt::format("{} has slots 0 to {}", step.step().name(), step.slots() - 1));
  }
  const std::string target = normal_path(folder);
  struct stat there {};
  if (::lstat(target.c_str(), &there) == 0) return Error(EEXIST, target + ": it is there already");
  if (errno != ENOENT) return last_error(target);
  TRY_ASSIGN(const std::unique_ptr<PartialFolder> partial, PartialFolder::make(target));
  const Union own = slot ? step.of_slot(*slot) : Union();
  TRY(Exporter(step, slot ? own : step.whole(), partial->fd(), settings).run());
  TRY(io::fault_point("remote_export.publish"));
  return partial->publish();
}

}  // namespace ckptfs::meta::remote
