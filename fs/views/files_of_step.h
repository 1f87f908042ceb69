// A step's files, as the readers of formats see them, and what its view needs to know of each. A file that is being
// written is left out and named as a problem, also one that is written through a mapping whose descriptor is closed: it
// may hold anything, a clone of what it will probably hold, or half of what it will be.
//
// *Has a live file changed?* Its blob's ctime tells, which nobody can set. It is read when the clock has gone beyond
// it, so that a later change shows; then it is asked who writes. Who begins to write after that changes the ctime, and
// who wrote all the time is found. But the daemon changes a ctime, too, when it settles a copy, say. So within a mount
// the changes that OpenFileTable counts tell first.
//
// *Who writes?* The lease probe tells of data that bypass the daemon: it finds mappings without a descriptor, and no
// longer finds who has closed, even before the RELEASE comes. Of what is written through the daemon, FLUSH tells of the
// close; it is waited for. All other opens are answered with `noflush`.
//
// Thread safety: one thread at a time; constant once collected.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fs/views/view.h"
#include "io/digest.h"
#include "meta/store/store.h"

namespace ckptfs::fs::views {

// What a file of a step was when the view was made.
struct SourceVersion {
  InodeNumber inode = 0;
  bool frozen = false;  // cannot change
  off_t size = 0;
  timespec ctime{};                 // of the blob
  std::optional<uint64_t> changed;  // as in Writers, then
};

struct Writers {
  bool writing = false;
  bool closing = false;  // who was writing may have closed it this moment, and who looks again soon knows more
  // While it stays as it is, and nobody is writing, the file does. None: somebody may just be beginning, or ending.
  std::optional<uint64_t> changed;
};
// Who writes to a file; `blob`: its, O_RDONLY.
using AskWriters = std::function<Result<Writers>(InodeNumber file, int blob)>;

class FilesOfStep : public meta::formats::StepFiles {
 public:
  // Bytes of all of them. A rank, a parameter and a chunk of a tensor each take some kilobytes at most.
  static constexpr uint64_t kMostRead = uint64_t{2} << 30;

  // `stop`: set when the mount ends, and nothing is read of them any more.
  FilesOfStep(const meta::Store& store, const AskWriters& ask_writers, const std::atomic<bool>& stop)
      : StepFiles(io::ReadLimit(kMostRead, &stop)),
        store_(store),
        tree_(store.tree()),
        ask_writers_(ask_writers),
        stop_(stop) {}

  Result<> collect(InodeNumber step);

  const std::vector<File>& list() const override { return files_; }
  Result<io::Fd> open(uint32_t index) const override;
  // What a file could not be opened or read for, and is not the file's fault.
  std::optional<Error> short_of() const;

  // Another one where anything of the files is another: within this mount.
  const std::string& fingerprint() const { return fingerprint_; }
  // Likewise, over mounts.
  io::Digest version(const std::string& more = {}) const;
  // Who wrote the optimizer's swap files, by the folders of the ranks ("rank00"). Of the same run are steps of which
  // these are the same.
  struct Writer {
    uint64_t process = 0;  // when it began (meta/types.h, newest_writer); 0: not one process, or not known
    uint32_t owner = 0;    // of the files
    bool operator==(const Writer&) const = default;
  };
  using Runs = std::map<std::string, Writer>;
  const Runs& runs() const { return runs_; }
  bool has_run() const;
  // Of each file.
  const std::vector<SourceVersion>& made() const { return made_; }
  const std::vector<Access>& access() const { return access_; }
  // As Source::digests.
  std::vector<std::string> digests() const;

  // All of them, also those that are being written.
  const std::vector<InodeNumber>& inodes() const { return inodes_; }
  uint64_t bytes() const { return bytes_; }

  const std::vector<meta::formats::Problem>& problems() const { return problems_; }
  // Is a file left out only because its close is not known yet?
  bool is_closing() const { return closing_; }
  timespec time() const { return time_; }  // when the newest of them changed

 private:
  struct Now {
    struct stat stat {};
    timespec ctime{};
    Writers writers;
  };
  Result<Now> inspect(InodeNumber inode, const meta::Attributes& attributes) const;
  void add(const std::string& path, InodeNumber inode, const meta::InodeRecord& record, const Now& now,
           const Access& access);
  void note_writer(const std::vector<std::string>& path, uint64_t process, uint32_t owner);
  Result<std::optional<Access>> reachable(const std::vector<std::string>& path, const struct stat& file);

  // A folder on the way to the file that is looked at; those of the next file are the same, for the most part.
  struct Folder {
    std::string name;
    InodeNumber inode = 0;
    meta::InodeRecord record;
  };
  // 0 files deep: the step's own. None: it is gone.
  Result<const Folder*> folder(const std::vector<std::string>& path, size_t depth);

  const meta::Store& store_;
  const meta::Tree& tree_;
  const AskWriters& ask_writers_;
  const std::atomic<bool>& stop_;
  InodeNumber step_ = 0;
  std::vector<Folder> folders_;
  std::vector<InodeNumber> inodes_;
  uint64_t bytes_ = 0;
  std::vector<File> files_;
  std::vector<SourceVersion> made_;
  std::vector<Access> access_;
  Runs runs_;
  std::vector<meta::formats::Problem> problems_;
  bool closing_ = false;
  mutable std::optional<Error> short_of_;
  std::string fingerprint_;
  std::string lasting_;  // likewise, over mounts
  timespec time_{};
};

}  // namespace ckptfs::fs::views
