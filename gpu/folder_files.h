// The files of a folder in the form that the format readers take. The folder may be on a ckptfs mount or not.
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

#include "io/mutex.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::gpu {

class FolderFiles : public meta::formats::StepFiles {
 public:
  // Lists the regular files in the folder and its subfolders, sorted. Symbolic links are not followed.
  static Result<FolderFiles> of(const std::string& folder);
  // The same for a single file, by its path.
  static Result<FolderFiles> of_file(const std::string& path);
  FolderFiles(FolderFiles&& other) noexcept : folder_(std::move(other.folder_)), files_(std::move(other.files_)) {}

  const std::vector<File>& list() const override { return files_; }
  // Fails with ESTALE if the file is not what it was when it was opened first: what is known of it, as of its header,
  // does not hold any more.
  Result<io::Fd> descriptor(uint32_t index) const;
  // Likewise.
  Result<io::ReadableFile> open(uint32_t index) const override;
  std::string path(uint32_t index) const { return folder_ + "/" + files_[index].path; }

 private:
  FolderFiles(std::string folder, std::vector<File> files) : folder_(std::move(folder)), files_(std::move(files)) {}

  std::string folder_;
  std::vector<File> files_;
  mutable io::Mutex mutex_;
  mutable std::map<uint32_t, struct stat> opened_ GUARDED_BY(mutex_);  // by index: as it was opened first
};

// Returns the absolute path without symbolic links. Errors such as ENOENT come with words.
Result<std::string> real_path(const std::string& path);

}  // namespace ckptfs::gpu
