// A step that the ranks of a run save together: each its files, then its manifest; the step appears, whole, when the
// last of them commits. Until then all of it lies in a folder beside the steps, TAG.ATTEMPT.partial, which is never
// complete. Another attempt has another folder, so two are never mixed.
//
// On a ckptfs mount files are written past it, into their blobs, are frozen as soon as they are durable, and the step
// is sealed if it is to be. Elsewhere the same is done with what the file system has: fsync, and rename for the step to
// appear (where a folder of that name is there already, file by file).
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/file_save.h"
#include "gpu/folder_files.h"
#include "gpu/mount_client.h"
#include "io/not_inherited.h"
#include "meta/formats/manifest.h"
#include "meta/formats/safetensors.h"

namespace ckptfs::gpu {

struct StepTarget {
  std::string series;   // the folder of the steps; it is there
  std::string tag;      // of the step
  std::string attempt;  // letters and digits, the same of all ranks, another one for each attempt
  unsigned rank = 0;
  unsigned world_size = 1;
};

// A tensor to be saved: `size` bytes from `memory` on, in order.
struct SavedTensor {
  std::string name;
  meta::formats::Dtype dtype = meta::formats::Dtype::float32;
  meta::formats::Shape shape;
  const std::byte* memory = nullptr;
  uint64_t size = 0;
};

class StepSave {
 public:
  // EINVAL: no tag, attempt or rank can be so. EPERM: the step is there and sealed. ENOENT: there is no such series.
  static Result<std::unique_ptr<StepSave>> begin(std::shared_ptr<Staging> staging, StepTarget target);
  // Waits for what is under way; what was not committed stays where it is.
  ~StepSave() = default;

  // Begins to save this rank's next file (FileSave::begin). `name`: one name. EEXIST: it has one of that name.
  Result<> add_file(const std::string& name, uint64_t size, std::vector<Part> parts, Stream stream);
  // As safetensors; EINVAL: two of one name, or one that has not the size of its shape.
  Result<> add_tensors(const std::string& name, const std::vector<SavedTensor>& tensors, Stream stream);

  // The memory of all files so far may change.
  Result<> wait_copied();
  // All of this rank's files are on the disk, and its manifest: it is done, but for the commit. Nothing can be added.
  Result<> wait_durable();
  // None: the step is there (also where another rank has seen to it). Else what is missing still: the rank that comes
  // last will commit it. After wait_durable().
  Result<std::optional<std::string>> commit(bool seal);

  const std::string& folder() const { return folder_; }

 private:
  // One of this rank's files, and what it is open as.
  struct File {
    std::string name;
    uint64_t size = 0;
    io::Fd opened;  // through the mount, kept while its blob is written; none: the FileSave has it
    std::unique_ptr<const std::string> header;  // stays where it is until it is copied
    std::unique_ptr<FileSave> save;
    std::optional<io::NotInherited> not_inherited;  // what could write to it
  };

  StepSave(std::shared_ptr<Staging> staging, StepTarget target, std::string folder, std::optional<MountClient> mount)
      : staging_(std::move(staging)),
        target_(std::move(target)),
        folder_(std::move(folder)),
        mount_(std::move(mount)) {}
  Result<> add(File file, std::vector<Part> parts, Stream stream);
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  Result<> freeze_files() const;
  Result<> write_manifest();
  Result<bool> is_committed() const;
  Result<> seal_step() const;
  Result<std::optional<std::string>> commit_in_folder() const;
  Result<> merge_into(const std::string& step, const FolderFiles& files) const;

  const std::shared_ptr<Staging> staging_;
  const StepTarget target_;
  const std::string folder_;
  const std::optional<MountClient> mount_;
  std::vector<File> files_;
  bool durable_ = false;
};

}  // namespace ckptfs::gpu
