// A step that the ranks of a run save together: each its files, then its manifest; the step appears, whole, when the
// last of them commits. Until then all of it lies in a folder beside the steps, partial-ATTEMPT-TAG, which is never
// complete. Another attempt has another folder, so two are never mixed.
//
// On a ckptfs mount the files are written past the mount, into their blobs, and are frozen as soon as they are durable.
// The commit seals the step if asked to. In any other folder the same is done with what a file system has: fsync, and a
// rename that makes the step appear. If the step's folder already exists, its files are replaced one by one.
//
// Thread safety: one thread at a time.
#pragma once

#include <map>
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
#include "meta/formats/saved_step.h"

namespace ckptfs::gpu {

struct StepTarget {
  std::string series;   // the folder of the steps, which must exist
  std::string tag;      // of the step
  std::string attempt;  // letters and digits; the same on all ranks, and different for each attempt
  unsigned rank = 0;
  unsigned world_size = 1;
};

// A tensor to be saved: `size` contiguous bytes at `memory`.
struct SavedTensor {
  std::string name;  // in the file
  meta::formats::Dtype dtype = meta::formats::Dtype::float32;
  meta::formats::Shape shape;
  const std::byte* memory = nullptr;
  uint64_t size = 0;
  std::optional<meta::formats::SavedPiece> piece = {};  // set if it is a piece of a whole
};

class StepSave {
 public:
  // Fails with EINVAL if the tag, the attempt or the rank is invalid; with EPERM if the step exists and is sealed; with
  // ENOENT if the series does not exist.
  static Result<std::unique_ptr<StepSave>> begin(std::shared_ptr<Staging> staging, StepTarget target);
  // Waits for what is in progress. Files that were not committed stay in folder().
  ~StepSave() = default;

  // Whether the manifest gets the digests of the files that are added from now on. A load then checks what it reads.
  void take_digests(bool wanted) { digests_wanted_ = wanted; }

  // Begins to save another file of this rank (FileSave::begin). `name` must be a file name without folders. Fails with
  // EEXIST if a file of that name exists.
  Result<> add_file(const std::string& name, uint64_t size, std::vector<Part> parts, Stream stream);
  // The same, in safetensors' format. Fails with EINVAL if two tensors have one name, if a tensor's size does not fit
  // its shape, or if a piece lies outside its whole.
  Result<> add_tensors(const std::string& name, const std::vector<SavedTensor>& tensors, Stream stream);

  // Adds seconds to a stage of the manifest's timing. "copy", "write" and "sync" are measured here, and what is added
  // to them counts in addition. Fails with EINVAL if it is no stage's name, or no length of time, or after
  // wait_durable().
  Result<> note(const std::string& stage, double seconds);

  // Waits until the memory of all files added so far may change.
  Result<> wait_copied();
  // Waits until this rank's files and its manifest are on the disk. After that only the commit is left, and no file can
  // be added.
  Result<> wait_durable();
  // Call it after wait_durable(). Returns nothing if the step is committed, by this rank or another one. Else it
  // returns what is missing; the rank that comes last will commit.
  Result<std::optional<std::string>> commit(bool seal);

  const std::string& folder() const { return folder_; }

 private:
  // One of this rank's files.
  struct File {
    std::string name;
    uint64_t size = 0;
    io::Fd opened;  // open through the mount while its blob is written; empty if the FileSave has that descriptor
    std::unique_ptr<const std::string> header;  // must not move before it is copied
    std::unique_ptr<FileSave> save;
    std::optional<io::NotInherited> not_inherited;  // the descriptors that can write to it
  };

  StepSave(std::shared_ptr<Staging> staging, StepTarget target, std::string folder, std::optional<MountClient> mount)
      : staging_(std::move(staging)),
        target_(std::move(target)),
        folder_(std::move(folder)),
        mount_(std::move(mount)) {}
  Result<> add(File file, std::vector<Part> parts, Stream stream);
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  Result<> make_durable();
  Result<std::optional<std::string>> try_commit(bool seal) const;
  Result<> freeze_files() const;
  void note_times(const FileSave::Times& times);
  meta::formats::SaveTiming timing() const;
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
  std::optional<FileSave::Times> times_;  // of all files: the first that begins, the last that is copied and written
  std::map<std::string, double> noted_;   // seconds by stage
  double begun_ = 0;                      // seconds since 1970
  bool digests_wanted_ = false;
  std::map<std::string, meta::formats::FileDigests> digests_;  // by name
  bool durable_ = false;
  std::optional<Error> failed_;  // asked again, the kernel would not report a failed sync again
};

}  // namespace ckptfs::gpu
