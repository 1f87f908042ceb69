#include "gpu/folder_source.h"

#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "io/control_message.h"
#include "io/log.h"

namespace ckptfs::gpu {
namespace {

constexpr size_t kMostDigests = size_t{1} << 24;  // of all files: 512 MiB, and 16 TiB in chunks of 1 MiB

}  // namespace

Result<std::unique_ptr<StepSource>> FolderSource::open(std::string path) {
  TRY_ASSIGN(const struct stat st, io::stat_at(AT_FDCWD, path));
  const bool is_step = S_ISDIR(st.st_mode);
  TRY_ASSIGN(FolderFiles files, is_step ? FolderFiles::of(path) : FolderFiles::of_file(path));
  return std::unique_ptr<StepSource>(new FolderSource(std::move(path), is_step, std::move(files)));
}

Result<SourceReport> FolderSource::load(Staging& staging, std::vector<Wanted> wanted, Stream stream) {
  std::set<uint32_t> used;
  for (const Wanted& one : wanted) used.insert(one.file);
  const std::vector<uint32_t> files(used.begin(), used.end());
  TRY(open_files(files));
  if (!digests_) TRY(find_digests());
  SourceReport report;
  std::vector<SourceFile> sources;
  std::map<uint32_t, uint32_t> place;
  for (const uint32_t file : files) {
    const auto blob = blobs_.find(file);
    const io::Fd& chosen = blob == blobs_.end() ? opened_[file] : blob->second;
    if (on_mount_ && blob == blobs_.end()) ++report.through_mount;
    place[file] = static_cast<uint32_t>(sources.size());
    TRY_ASSIGN(SourceFile source, make_source(files_.path(file), chosen.get()));
    const auto digests = digests_->find(file);
    if (digests != digests_->end() && files_.list()[file].size == source.size) source.digests = &digests->second;
    sources.push_back(std::move(source));
  }
  for (Wanted& one : wanted) one.file = place[one.file];
  TRY_ASSIGN(report.moved, gpu::load(staging, sources, std::move(wanted), stream));
  return report;
}

Result<> FolderSource::tell_loaded(const meta::formats::RankTimes& times) const {
  TRY_ASSIGN(const auto mount, MountClient::of(path_));
  return mount ? mount->loaded(path_, times) : Result<>(success());
}

// Reads the manifests of a step. A file of another length than in its manifest is not the one that was saved there.
Result<> FolderSource::find_digests() {
  std::map<std::string_view, uint32_t> places;
  const auto& list = files_.list();
  for (uint32_t file = 0; file < list.size(); ++file) places[list[file].path] = file;
  std::map<uint32_t, meta::formats::FileDigests> found;
  size_t count = 0;
  for (uint32_t file = 0; file < list.size(); ++file) {
    if (!meta::formats::is_manifest_name(list[file].path)) continue;
    TRY_ASSIGN(const std::string text, files_.read(file, meta::formats::kMostManifest));
    auto manifest = meta::formats::parse_manifest(text);
    if (!manifest) return with_name(files_.path(file), manifest.error());
    for (const auto& [path, size] : manifest.value().files) {
      const auto digests = manifest.value().digests.find(path);
      const auto place = places.find(path);
      if (digests == manifest.value().digests.end() || place == places.end()) continue;
      if (list[place->second].size != size) continue;
      count += digests->second.digests.size();
      if (count > kMostDigests) return Error(EFBIG, path_ + ": its manifests have too many digests");
      found[place->second] = std::move(digests->second);
    }
  }
  digests_ = std::move(found);
  return success();
}

// Opens those that are not open yet, kMaximumDescriptors at a time: a file of a mount has two descriptors for a moment.
Result<> FolderSource::open_files(const std::vector<uint32_t>& files) {
  std::vector<uint32_t> fresh;
  std::ranges::copy_if(files, std::back_inserter(fresh),
                       [this](uint32_t file) { return !opened_.contains(file) && !blobs_.contains(file); });
  TRY_ASSIGN(const auto mount, MountClient::of(path_));
  on_mount_ = mount.has_value();
  for (auto at = fresh.begin(); at != fresh.end();) {
    const auto end = at + std::min<ptrdiff_t>(fresh.end() - at, io::kMaximumDescriptors);
    const std::vector<uint32_t> some(at, end);
    for (const uint32_t file : some) {
      TRY_ASSIGN(opened_[file], files_.descriptor(file));
    }
    if (mount) TRY(get_blobs(*mount, some));
    at = end;
  }
  return success();
}

// Gets the blobs of files that are open. A file whose blob we get is closed again, except for the first one: it keeps
// the step in use.
Result<> FolderSource::get_blobs(const MountClient& mount, const std::vector<uint32_t>& files) {
  std::vector<std::string> paths;
  for (const uint32_t file : files) paths.push_back(files_.path(file));
  auto blobs = mount.blobs_to_read(paths);
  if (!blobs) {
    log::warn("{}: its files are read through the mount, not past it: {}", path_, blobs.error().message());
    return success();
  }
  for (size_t at = 0; at < files.size(); ++at) {
    auto& blob = blobs.value()[at];
    TRY_ASSIGN(const struct stat st, io::stat_fd(opened_[files[at]].get()));
    if (blob && blob.value().inode == st.st_ino) {
      blobs_[files[at]] = std::move(blob).value().blob;
      io::Fd opened = std::move(opened_.extract(files[at]).mapped());
      if (!kept_) kept_ = std::move(opened);
    } else {
      log::warn("{}: it is read through the mount, not past it: {}", paths[at],
                blob ? "it was replaced" : blob.error().message());
    }
  }
  return success();
}

}  // namespace ckptfs::gpu
