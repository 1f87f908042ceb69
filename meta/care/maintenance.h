// Maintenance of what is stored, on a thread of its own, while nobody waits for it. Again and again the thread
//   - takes the digests of every frozen blob, and of every file outside the swap folders that has been quiet for `-o
//     quiet=` (meta/care/digests.h),
//   - has files share what they hold twice: equal chunks of the file at the same place in the steps made before and
//     after, and equal files anywhere, of one owner only (meta/care/sharing.h, docs/security.md),
//   - reads all blobs against their digests, slowly, once in the time of `-o scrub=` (the scrub). Damage is logged with
//     every path that names the blob, kept in the index, shown in `status`,
//   - says which steps hold exactly the tensors of the step before (the xattr `identical_to`): an optimizer that
//     changes nothing.
//
// The thread reads with idle I/O priority. While any file is open for writing, and for 10 s after, it reads for a
// twentieth of the time only.
//
// Thread safety: report() from any thread; start() and stop() from one. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "io/mutex.h"
#include "meta/care/digests.h"
#include "meta/store/store.h"

namespace ckptfs::meta {

struct MaintenanceOptions {
  std::chrono::seconds quiet{30};          // since a file was written last
  std::chrono::seconds scrub{14 * 86400};  // in which all blobs are read once; 0: never
};

struct MaintenanceReport {
  uint64_t digested_files = 0;  // since the mount
  uint64_t digested_bytes = 0;
  uint64_t waiting_files = 0;          // for their digests
  uint64_t shared_bytes = 0;           // had twice before, since the mount
  uint64_t scrubbed_bytes = 0;         // since the mount
  uint64_t failures = 0;               // of any of it; each is logged
  std::vector<std::string> damaged;    // paths
  std::vector<std::string> identical;  // steps with the tensors of the step before
};

class Maintenance {
 public:
  using Time = std::chrono::nanoseconds;

  Maintenance(Store& store, MaintenanceOptions options) : store_(store), options_(options) {}
  ~Maintenance() { stop(); }

  void start();
  void stop();
  MaintenanceReport report() const;

 private:
  struct File {
    BlobNumber blob = 0;
    InodeNumber inode = 0;  // one of those that name the blob
    uint32_t uid = 0;       // its owner
  };
  struct Inventory {
    std::vector<File> undigested;
    std::vector<File> digested;  // ascending by blob
    std::vector<BlobNumber> damaged;
    uint64_t bytes = 0;  // of `digested`
  };

  void run();
  Result<Time> maintain_all();
  Result<Inventory> take_inventory();
  Result<bool> maintain_file(const File& file);
  Result<Taking> digest(const File& file);
  bool is_quiet(const File& file) const;
  // Files of one owner share only: whether blocks are shared can be seen, and would tell who holds the one file what
  // the other holds.
  Result<> share(const File& file);
  Result<> share_with(BlobNumber from, BlobNumber to);
  Result<> note_damaged(const std::vector<BlobNumber>& blobs);
  Result<> find_identical_steps();
  Result<> scrub(Time passed);
  Result<uint64_t> scrub_next();
  Result<> record_scrubbed();
  void failed(const std::string& what, const Error& error);
  bool pause(Time read);
  bool wait(Time time);  // false: the end

  Store& store_;
  const MaintenanceOptions options_;

  // The thread's own.
  uint64_t version_ = 0;    // of the tree when all of it was looked at
  bool postponed_ = false;  // some file was not quiet yet
  Inventory inventory_;     // of the last round that looked
  struct Root {
    uint64_t first_bytes = 0;
    uint32_t uid = 0;
    bool operator==(const Root&) const = default;
  };
  struct RootHash {
    size_t operator()(const Root& root) const { return root.first_bytes ^ root.uid; }
  };
  std::unordered_multimap<Root, BlobNumber, RootHash> by_root_;
  std::set<InodeNumber> judged_;  // steps whose tensors were compared with those of the step before
  BlobNumber scrubbed_ = 0;       // the scrub goes on behind it
  double scrub_credit_ = 0;       // bytes that may be read
  std::chrono::steady_clock::time_point scrub_recorded_;
  std::chrono::steady_clock::time_point written_;  // when somebody had a file open for writing last

  mutable io::Mutex mutex_;
  io::CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  MaintenanceReport report_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ckptfs::meta
