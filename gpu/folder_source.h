// A step in a folder, or a single file, on a ckptfs mount or not.
//
// Files of a mount are read past it where the daemon hands out their blobs. A file of the step is then kept open after
// the first load, so that rotation does not remove the step.
//
// What is loaded of a step is checked against the digests in its manifests, if they have any: see load.h. The digests
// take 32 bytes for each chunk.
//
// Thread safety: as StepSource.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/folder_files.h"
#include "gpu/mount_client.h"
#include "gpu/step_source.h"

namespace ckptfs::gpu {

class FolderSource : public StepSource {
 public:
  // `path` is absolute, without symbolic links.
  static Result<std::unique_ptr<StepSource>> open(std::string path);

  const std::string& path() const override { return path_; }
  bool is_step() const override { return is_step_; }
  const meta::formats::StepFiles& files() const override { return files_; }
  // Fails with EBADMSG or EFBIG if the step has a manifest that cannot be read.
  Result<SourceReport> load(Staging& staging, std::vector<Wanted> wanted, Stream stream) override;
  Result<> tell_loaded(const meta::formats::RankTimes& times) const override;

 private:
  FolderSource(std::string path, bool is_step, FolderFiles files)
      : path_(std::move(path)), is_step_(is_step), files_(std::move(files)) {}
  Result<> find_digests();
  Result<> open_files(const std::vector<uint32_t>& files);
  Result<> get_blobs(const MountClient& mount, const std::vector<uint32_t>& files);

  const std::string path_;
  const bool is_step_;
  const FolderFiles files_;
  std::map<uint32_t, io::Fd> opened_;  // all that are open, except those in blobs_
  std::map<uint32_t, io::Fd> blobs_;   // files of a mount whose blobs we have
  io::Fd kept_;                        // one of the files in blobs_, open through the mount
  bool on_mount_ = false;
  std::optional<std::map<uint32_t, meta::formats::FileDigests>> digests_;  // by file; found by the first load
};

}  // namespace ckptfs::gpu
