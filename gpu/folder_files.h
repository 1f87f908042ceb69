// The files of a folder in the form that the format readers take. The folder may be on a ckptfs mount or not.
// Thread safety: constant after construction.
#pragma once

#include <string>
#include <vector>

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
  Result<io::Fd> open(uint32_t index) const override;
  std::string path(uint32_t index) const { return folder_ + "/" + files_[index].path; }

 private:
  FolderFiles(std::string folder, std::vector<File> files) : folder_(std::move(folder)), files_(std::move(files)) {}

  std::string folder_;
  std::vector<File> files_;
};

// Returns the absolute path without symbolic links. Errors such as ENOENT come with words.
Result<std::string> real_path(const std::string& path);

}  // namespace ckptfs::gpu
