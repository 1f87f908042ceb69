// A step's files, as the readers of formats see them, and what its view needs to know of each. A file that is being
// written is left out and named as a problem, also if it is written through a mapping whose descriptor is closed. Such
// a file may hold half of what it will hold.
//
// *Has a live file changed?* The ctime of its blob tells, since nobody can set a ctime. The ctime is read when the
// clock has gone beyond it, so that a later change shows. Then the writers are looked for. A writer who begins after
// that changes the ctime, and one who wrote all the time is found. But the daemon changes a ctime, too, for example
// when it sets a copy-on-write hint. So within a mount the changes that OpenFileTable counts tell first.
//
// *Who writes?* The lease probe tells for data that bypass the daemon. It finds mappings without a descriptor. It no
// longer finds a writer who has closed, even before the RELEASE comes. For data that go through the daemon, FLUSH tells
// of the close, and the view waits for it. All other opens are answered with `noflush`.
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

#include "fs/open/open_files.h"
#include "fs/views/view.h"
#include "io/digest.h"
#include "meta/store/store.h"

namespace ckptfs::fs::views {

// What a file of a step was when the view was made.
struct SourceVersion {
  InodeNumber inode = 0;
  bool frozen = false;  // cannot change
  off_t size = 0;
  timespec ctime{};                 // of the blob, unless it is frozen
  std::optional<uint64_t> changed;  // as in Writers, then
  uint64_t writer = 0;              // which program wrote it last (program_id(), meta/steps/ledger.h); 0: nobody knows
};

struct Writers {
  bool writing = false;
  bool closing = false;  // the writer may have closed the file this moment; to ask again soon tells more
  // While this number stays, and nobody is writing, the file does not change. None: somebody may be beginning or ending
  // to write.
  std::optional<uint64_t> changed;
};
// Tells who writes to a file. `blob`: the file's blob, O_RDONLY.
using AskWriters = std::function<Result<Writers>(InodeNumber file, int blob)>;
// As far as the node table and the kernel tell. Asks the kernel if it can tell: it also knows writers through a mapping
// whose descriptor is closed, and no longer knows a writer whose close() has returned.
Result<Writers> writers_of(const OpenFileTable& files, InodeNumber inode, int blob);

class FilesOfStep : public meta::formats::StepFiles {
 public:
  // Bytes that may be read of all files together. A rank, a parameter and a chunk of a tensor each take some kilobytes
  // at most.
  static constexpr uint64_t kMostRead = uint64_t{2} << 30;

  // `stop` is set when the mount ends. Then nothing is read any more.
  FilesOfStep(const meta::Store& store, const AskWriters& ask_writers, const std::atomic<bool>& stop)
      : StepFiles(io::ReadLimit(kMostRead, &stop)),
        store_(store),
        tree_(store.tree()),
        ask_writers_(ask_writers),
        stop_(stop) {}

  Result<> collect(InodeNumber step);

  const std::vector<File>& list() const override { return files_; }
  Result<io::ReadableFile> open(uint32_t index) const override;
  // Why a file could not be opened or read, if that is not the file's fault.
  std::optional<Error> short_of() const;

  // Changes if anything of the files changes. Valid within this mount.
  const std::string& fingerprint() const { return fingerprint_; }
  // Likewise, valid over mounts.
  io::Digest version(const std::string& more = {}) const;
  // Who wrote the optimizer's swap files, by the folders of the ranks ("rank00"). Steps with the same writers are of
  // the same run.
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

  // All files, also those that are being written.
  const std::vector<InodeNumber>& inodes() const { return inodes_; }
  uint64_t bytes() const { return bytes_; }

  const std::vector<meta::formats::Problem>& problems() const { return problems_; }
  // Is a file left out only because its close is not known yet?
  bool is_closing() const { return closing_; }
  timespec time() const { return time_; }  // when the newest of them changed, as its mtime tells
  // When the newest of them changed that is no note (formats::is_note); of notes alone, as above.
  timespec saved_time() const { return saved_.value_or(time_); }

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

  // A folder on the way to the current file. The next file mostly has the same folders.
  struct Folder {
    std::string name;
    InodeNumber inode = 0;
    meta::InodeRecord record;
  };
  // The folder of path[depth].
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
  std::optional<timespec> saved_;
};

}  // namespace ckptfs::fs::views
