// A step's files, as the readers of formats see them, and what its view needs to know of each. What is being written is
// left out, and among the problems: it may be anything, a clone of what it will probably hold, or half of what it will
// be.
//
// Thread safety: one thread at a time; constant once collected.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fs/views/view.h"
#include "io/digest.h"
#include "meta/store.h"

namespace ckptfs::fs::views {

// What a file of a step was when the view was made.
struct Made {
  InodeNumber inode = 0;
  bool frozen = false;  // cannot change
  off_t size = 0;
  timespec mtime{};
};

class FilesOfStep : public meta::formats::StepFiles {
 public:
  // `is_written`: somebody has the file open for writing.
  FilesOfStep(const meta::Store& store, const std::function<bool(InodeNumber)>& is_written)
      : store_(store), tree_(store.tree()), is_written_(is_written) {}

  Result<> collect(InodeNumber step);

  const std::vector<File>& list() const override { return files_; }
  Result<io::Fd> open(uint32_t index) const override;
  // What a file could not be opened for, and is not the file's fault.
  const std::optional<Error>& short_of() const { return short_of_; }

  // Another one where anything of the files is another.
  const std::string& fingerprint() const { return fingerprint_; }
  io::Digest version() const;
  // The processes that wrote the optimizer's swap files, by the folders of the ranks (meta/types.h, newest_writer).
  const std::map<std::string, uint64_t>& runs() const { return runs_; }
  // Of each file.
  const std::vector<Made>& made() const { return made_; }
  const std::vector<Access>& access() const { return access_; }
  // As Source::digests.
  std::vector<std::string> digests() const;

  const std::vector<meta::formats::Problem>& problems() const { return problems_; }
  timespec time() const { return time_; }  // when the newest of them changed

 private:
  void add(const std::string& path, InodeNumber inode, const meta::Attributes& attributes, const Access& access);
  Result<std::optional<Access>> reachable(const std::vector<std::string>& path, const struct stat& file);

  const meta::Store& store_;
  const meta::Tree& tree_;
  const std::function<bool(InodeNumber)>& is_written_;
  InodeNumber step_ = 0;
  std::vector<File> files_;
  std::vector<Made> made_;
  std::vector<Access> access_;
  std::map<std::string, uint64_t> runs_;
  std::vector<meta::formats::Problem> problems_;
  mutable std::optional<Error> short_of_;
  std::string fingerprint_;
  timespec time_{};
};

}  // namespace ckptfs::fs::views
