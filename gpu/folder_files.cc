#include "gpu/folder_files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "io/fd.h"

namespace ckptfs::gpu {
namespace {

bool is_same(const struct stat& one, const struct stat& other) {
  const auto time = [](const struct stat& st) { return std::pair(st.st_mtim.tv_sec, st.st_mtim.tv_nsec); };
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino && one.st_size == other.st_size &&
         time(one) == time(other);
}

}  // namespace

Result<FolderFiles> FolderFiles::of(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<File> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const bool regular = at->is_regular_file(error) && !at->is_symlink(error);
    if (error) break;
    if (!regular) continue;
    const uint64_t size = at->file_size(error);
    if (error) break;
    files.push_back({at->path().lexically_relative(folder).string(), size});
  }
  if (error) return Error(error.value(), folder + ": " + error.message());
  std::ranges::sort(files, {}, &File::path);
  return FolderFiles(folder, std::move(files));
}

Result<FolderFiles> FolderFiles::of_file(const std::string& path) {
  TRY_ASSIGN(const struct stat st, io::stat_at(AT_FDCWD, path));
  const size_t slash = path.rfind('/');
  return FolderFiles(path.substr(0, slash), {{path.substr(slash + 1), static_cast<uint64_t>(st.st_size)}});
}

Result<io::ReadableFile> FolderFiles::open(uint32_t index) const {
  TRY_ASSIGN(io::Fd file, descriptor(index));
  return io::ReadableFile(std::move(file));
}

Result<io::Fd> FolderFiles::descriptor(uint32_t index) const {
  TRY_ASSIGN(io::Fd file, io::open_at(AT_FDCWD, path(index), O_RDONLY));
  TRY_ASSIGN(const struct stat st, io::stat_fd(file.get()));
  const io::MutexLock lock(mutex_);
  const auto [known, fresh] = opened_.try_emplace(index, st);
  if (!fresh && !is_same(known->second, st)) {
    return Error(ESTALE, path(index) + ": it was changed or replaced since its header was read; load it again");
  }
  return file;
}

Result<std::string> real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  if (!real) return last_error(path);
  return std::string(real.get());
}

}  // namespace ckptfs::gpu
