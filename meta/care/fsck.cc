#include "meta/care/fsck.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>

#include "meta/blobs/blobs.h"
#include "meta/care/digests.h"
#include "meta/index/index.h"
#include "meta/store/store.h"

namespace ckptfs::meta {
namespace {

std::string inode_name(InodeNumber number) { return "inode " + std::to_string(number); }

// The facts of an inode and of a blob that are compared. They are small, since those of all are in memory.
struct InodeFacts {
  uint32_t mode = 0;
  uint32_t flags = 0;
  uint32_t nlink = 0;
  uint32_t names = 0;       // found in folders
  uint32_t folders_in = 0;  // a folder's
  InodeNumber parent = 0;
  BlobNumber blob = 0;

  bool is_dir() const { return S_ISDIR(mode); }
};
struct BlobFacts {
  BlobState state = BlobState::live;
  bool has_file = false;
  uint64_t references = 0;  // found in inodes
};

// Reads everything in the index once, and then compares each table with the others.
class Checker {
 public:
  Checker(const Index& index, const Blobs& blobs, FsckReport& report) : index_(index), blobs_(blobs), report_(report) {}

  Result<> run() {
    TRY_ASSIGN(const uint64_t clean, index_.number(kCleanKey));
    report_.clean_unmount = clean != 0;
    TRY(check_generation());
    TRY(index_.for_each_inode([this](InodeNumber number, const InodeRecord& record) -> Result<> {
      inodes_.emplace(number, InodeFacts{record.mode, record.flags, record.nlink, 0, 0, record.parent, record.blob});
      last_inode_ = std::max(last_inode_, number);
      return success();
    }));
    TRY(index_.for_each_blob([this](BlobNumber number, const BlobRecord& record) -> Result<> {
      records_.emplace(number, BlobFacts{record.state});
      return success();
    }));
    TRY(count_entries());
    TRY(check_inodes());
    TRY(check_blobs());
    TRY(check_steps());
    TRY(check_limits());
    report_.inodes = inodes_.size();
    report_.blobs = records_.size();
    return success();
  }

 private:
  void problem(std::string text) { report_.problems.push_back(std::move(text)); }

  Result<> check_generation() {
    TRY_ASSIGN(const uint64_t of_index, index_.generation());
    TRY_ASSIGN(const uint64_t of_blobs, blobs_.generation());
    if (of_index < of_blobs) {
      problem("the index is older than blobs/: a copy of meta/ was put back; files that are newer have no name");
    }
    return success();
  }

  Result<> count_entries() {
    return index_.for_each_entry([this](InodeNumber parent, const DirectoryEntry& entry) -> Result<> {
      const std::string where = "'" + entry.name + "' in " + inode_name(parent);
      const auto folder = inodes_.find(parent);
      if (folder == inodes_.end() || !folder->second.is_dir()) problem(where + ": the folder is missing");
      const auto child = inodes_.find(entry.inode);
      if (child == inodes_.end()) {
        problem(where + ": it leads to the missing " + inode_name(entry.inode));
        return success();
      }
      if ((child->second.mode & S_IFMT) != entry.type) problem(where + ": its kind is not that of its inode");
      ++child->second.names;
      if (child->second.is_dir()) {
        if (folder != inodes_.end()) ++folder->second.folders_in;
        if (child->second.parent != parent) problem(where + ": its inode says it lies elsewhere");
      }
      return success();
    });
  }

  Result<> check_inodes() {
    return index_.for_each_inode([this](InodeNumber number, const InodeRecord&) -> Result<> {
      const InodeFacts& record = inodes_.at(number);
      const uint32_t names = record.names;
      if (record.is_dir()) {
        const bool root = number == kRootInode;
        if (names != (root ? 0U : 1U) && record.nlink != 0)
          problem(inode_name(number) + ": a directory with " + std::to_string(names) + " names");
        if (record.nlink != 0 && record.nlink != 2 + record.folders_in) {
          problem(inode_name(number) + ": its link count is " + std::to_string(record.nlink) + ", should be " +
                  std::to_string(2 + record.folders_in));
        }
      } else if (record.nlink != names) {
        problem(inode_name(number) + ": its link count is " + std::to_string(record.nlink) + ", it has " +
                std::to_string(names) + " names");
      }
      if (S_ISREG(record.mode)) check_file(number, record);
      return success();
    });
  }

  void check_file(InodeNumber number, const InodeFacts& record) {
    const auto blob = records_.find(record.blob);
    const std::string where = inode_name(number) + ": blob " + Blobs::name(record.blob);
    if (blob == records_.end()) return problem(where + " is not in the index");
    ++blob->second.references;
    const bool live = (record.flags & kFrozen) == 0;
    if (blob->second.state != (live ? BlobState::live : BlobState::frozen)) {
      problem(where + " is not " + (live ? "live" : "frozen"));
    }
  }

  Result<> check_blobs() {
    TRY(find_files());
    return index_.for_each_blob([this](BlobNumber number, const BlobRecord& record) -> Result<> {
      const bool goes_at_next_start = record.state == BlobState::tentative || record.state == BlobState::doomed;
      return goes_at_next_start ? success() : check_blob(number, record);
    });
  }

  Result<> find_files() {
    TRY_ASSIGN(const auto present, blobs_.list());
    for (const BlobNumber number : present) {
      if (const auto record = records_.find(number); record != records_.end()) {
        record->second.has_file = true;
        continue;
      }
      TRY_ASSIGN(const struct stat st, blobs_.stat(number));
      if (st.st_size > 0)
        report_.orphans.push_back({Blobs::name(number), static_cast<uint64_t>(st.st_size), st.st_mtim});
    }
    return success();
  }

  Result<> check_blob(BlobNumber number, const BlobRecord& record) {
    const BlobFacts& facts = records_.at(number);
    const std::string where = "blob " + Blobs::name(number);
    if (facts.references != record.references) {
      problem(where + ": " + std::to_string(record.references) + " references are recorded, the tree has " +
              std::to_string(facts.references));
    }
    if (record.digest.state != DigestState::none && !digests_of(index_, number, record.digest)) {
      problem(where + ": digests of it are missing");
    }
    if (!facts.has_file) {
      problem(where + ": its file is missing");
      return success();
    }
    TRY_ASSIGN(const struct stat st, blobs_.stat(number));
    report_.bytes += static_cast<uint64_t>(st.st_size);
    if (record.state == BlobState::frozen && static_cast<uint64_t>(st.st_size) != record.length) {
      problem(where + ": it is frozen with " + std::to_string(record.length) + " bytes, its file has " +
              std::to_string(st.st_size));
    }
    return success();
  }

  Result<> check_steps() {
    return index_.for_each_step([this](InodeNumber number, const StepRecord& record) -> Result<> {
      const auto inode = inodes_.find(number);
      if (inode == inodes_.end() || !inode->second.is_dir()) {
        problem("step record of the missing " + inode_name(number));
      } else if (record.sealed != ((inode->second.flags & kSealed) != 0)) {
        problem(inode_name(number) + ": step record and directory disagree on whether it is sealed");
      }
      return success();
    });
  }

  Result<> check_limits() {
    TRY_ASSIGN(const uint64_t limit, index_.number(kInodeLimitKey));
    if (last_inode_ >= limit) {
      problem(inode_name(last_inode_) + " lies above the allotted numbers (" + std::to_string(limit) + ")");
    }
    return success();
  }

  const Index& index_;
  const Blobs& blobs_;
  FsckReport& report_;
  std::unordered_map<InodeNumber, InodeFacts> inodes_;
  std::unordered_map<BlobNumber, BlobFacts> records_;
  InodeNumber last_inode_ = 0;
};

struct LockedStore {
  io::Fd lock;
  io::Fd blobs;
  std::unique_ptr<Index> index;
};

// Opens the store exclusively, so a mounted store is refused.
Result<LockedStore> open_for_checking(const std::string& folder) {
  LockedStore store;
  TRY(read_store_id(folder));
  TRY_ASSIGN(store.lock, io::open_at(AT_FDCWD, folder + "/lock", O_RDONLY));
  if (::flock(store.lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(EBUSY, folder + ": the store is mounted; unmount it first (ckptfs umount)");
  }
  TRY_ASSIGN(store.blobs, io::open_at(AT_FDCWD, folder + "/blobs", O_RDONLY | O_DIRECTORY));
  Index::Options options;
  options.folder = folder + "/meta";
  options.durable_file = folder + "/durable";
  options.blobs_fd = store.blobs.get();
  options.read_only = true;
  TRY_ASSIGN(store.index, Index::open(options));
  return store;
}

}  // namespace

Result<FsckReport> fsck(const std::string& folder) {
  TRY_ASSIGN(const LockedStore store, open_for_checking(folder));
  FsckReport report;
  TRY(Checker(*store.index, Blobs(store.blobs.get()), report).run());
  return report;
}

Result<uint64_t> remove_orphans(const std::string& folder) {
  TRY_ASSIGN(const LockedStore store, open_for_checking(folder));
  FsckReport report;
  const Blobs blobs(store.blobs.get());
  TRY(Checker(*store.index, blobs, report).run());
  if (!report.problems.empty()) {
    return Error(EUCLEAN, folder +
                              ": the store has problems (ckptfs fsck lists them); nameless blobs may be what is "
                              "missing, so none was removed");
  }
  for (const Orphan& orphan : report.orphans) TRY(blobs.remove(*Blobs::parse_name(orphan.name)));
  TRY(io::fsync_fd(store.blobs.get()));
  return uint64_t{report.orphans.size()};
}

}  // namespace ckptfs::meta
