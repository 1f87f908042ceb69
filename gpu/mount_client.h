// A client of the daemon of the ckptfs mount that a path is on (fs/control/blob_commands.h). Paths here are the
// caller's: absolute, without symbolic links.
//
// Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/fd.h"
#include "io/mount_table.h"
#include "io/result.h"
#include "meta/formats/manifest.h"

namespace ckptfs::gpu {

// A file's blob, and the file's inode number on the mount.
struct BlobOfFile {
  uint64_t inode = 0;
  io::Fd blob;
};

class MountClient {
 public:
  // Returns nothing if the path is not on a ckptfs mount.
  static Result<std::optional<MountClient>> of(const std::string& path);

  // Returns the blobs of up to io::kMaximumDescriptors files, for reading. A file whose blob the daemon refuses gets an
  // error.
  Result<std::vector<Result<BlobOfFile>>> blobs_to_read(const std::vector<std::string>& paths) const;
  // Returns the blob of a file that the caller has open for writing. The caller must keep the file open.
  Result<io::Fd> blob_to_write(const std::string& path) const;
  // Makes the folder for the files of one attempt to save a step. Returns its path.
  Result<std::string> begin(const std::string& series, const std::string& tag, const std::string& attempt) const;
  Result<> freeze(const std::vector<std::string>& paths) const;
  // Returns nothing if the step is committed. Else ranks are missing, and it returns the reason; the last rank will
  // commit.
  Result<std::optional<std::string>> commit(const std::string& folder, const std::string& tag, unsigned world_size,
                                            bool seal) const;
  // Tells how long the ranks of a group took to load a step or a file.
  Result<> loaded(const std::string& path, const meta::formats::RankTimes& times) const;

 private:
  explicit MountClient(io::MountEntry mount) : mount_(std::move(mount)) {}
  Result<std::vector<Result<BlobOfFile>>> blobs(const std::vector<std::string>& paths, bool write) const;

  io::MountEntry mount_;
};

}  // namespace ckptfs::gpu
