// The ckptfs mount that a path lies in, as a client of its daemon (fs/control/blob_commands.h). Paths here are the
// caller's, absolute and without links.
//
// Thread safety: all of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/fd.h"
#include "io/mount_table.h"
#include "io/result.h"

namespace ckptfs::gpu {

// A file's blob, and the file's inode number on the mount.
struct BlobOfFile {
  uint64_t inode = 0;
  io::Fd blob;
};

class MountClient {
 public:
  // None: the path is on no ckptfs mount.
  static Result<std::optional<MountClient>> of(const std::string& path);

  // Of each of up to io::kMaximumDescriptors files, to be read; an error where the daemon does not give it.
  Result<std::vector<Result<BlobOfFile>>> blobs_to_read(const std::vector<std::string>& paths) const;
  // Of a file that the caller has open for writing, and keeps so.
  Result<io::Fd> blob_to_write(const std::string& path) const;
  // The folder for the files of an attempt to save a step.
  Result<std::string> begin(const std::string& series, const std::string& tag, const std::string& attempt) const;
  Result<> freeze(const std::vector<std::string>& paths) const;
  // None: it is there. Else why not: ranks are missing, and the last of them will commit it.
  Result<std::optional<std::string>> commit(const std::string& folder, const std::string& tag, unsigned world_size,
                                            bool seal) const;

 private:
  explicit MountClient(io::MountEntry mount) : mount_(std::move(mount)) {}
  Result<std::vector<Result<BlobOfFile>>> blobs(const std::vector<std::string>& paths, bool write) const;

  io::MountEntry mount_;
};

}  // namespace ckptfs::gpu
