// export_step().
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "io/fault.h"
#include "io/fd.h"
#include "meta/remote/layout.h"
#include "meta/remote/remote_step.h"
#include "meta/remote/step_writer.h"

namespace ckptfs::meta::remote {
namespace {

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

// Without a '/' at its end.
std::string normal_path(const std::string& folder) {
  std::string path = std::filesystem::path(folder).lexically_normal().string();
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

Result<> export_step(const RemoteStep& step, std::optional<uint32_t> slot, const std::string& folder,
                     const ReadSettings& settings) {
  TRY_ASSIGN(const Union files, step.files_of(slot));
  const std::string target = normal_path(folder);
  struct stat there {};
  if (::lstat(target.c_str(), &there) == 0) return Error(EEXIST, target + ": it is there already");
  if (errno != ENOENT) return last_error(target);
  TRY_ASSIGN(const std::unique_ptr<PartialFolder> partial, PartialFolder::make(target));
  StepWriter writer(step, files, partial->fd(), settings);
  TRY(writer.make(StepWriter::Room::allocated));
  TRY(writer.fetch());
  TRY(writer.finish());
  TRY(io::fault_point("remote_export.publish"));
  return partial->publish();
}

}  // namespace ckptfs::meta::remote
