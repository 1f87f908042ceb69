// The files that are being adopted (fs/adopt/adoption.h), or were until a moment ago and are not synced yet. Knows them
// by inode, begins them, and settles in the background, within a second or so, those whose last close has come.
//
// Thread safety: all of it. Lock: mutex_ (a leaf), never held while an Adoption does anything.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fs/adopt/adoption.h"
#include "fs/adopt/block_adoption.h"
#include "fs/adopt/guesses.h"
#include "fs/base/counters.h"
#include "fs/kernel/notifications.h"
#include "fs/open/open_files.h"
#include "fs/open/write_errors.h"
#include "meta/store.h"

namespace ckptfs::fs {

class Adoptions {
 public:
  Adoptions(meta::Store& store, OpenFileTable& files, Notifications& notifications, WriteErrors& write_errors,
            Counters& counters);
  ~Adoptions();

  void start();
  // Ends the thread and settles all: what is left, and why, else. Harmless a second time.
  Result<> stop();

  Guesses guesses;

  // May an open with these flags, of a file that was just made or emptied, adopt?
  static bool may_adopt(int flags);
  // Likewise, as a clone?
  static bool may_clone(int flags);
  // Of a file that is empty, and has no other open than the one on its way. Null: it cannot be; the file is written
  // plainly.
  std::shared_ptr<Adoption> begin(const OpenFile& file, const std::string& name, const Guesses::Found& guessed);
  // For one that cannot begin as a clone; nothing has to be told of its end. Null: none of the candidates can be used.
  std::unique_ptr<BlockAdoption> begin_blocks(const OpenFile& file, const std::string& name,
                                              std::vector<InodeNumber> candidates);
  // The handle that wrote has gone, or will never come.
  void closed(const std::shared_ptr<Adoption>& adoption);

  // Is it being adopted, or was until a moment ago?
  bool knows(InodeNumber inode) const { return find(inode) != nullptr; }
  bool knows_any() const { return count_ != 0; }
  // To be called before anything but the adopting handle's WRITEs happens to a file. Nothing to do for most.
  Result<> cut(InodeNumber inode);
  // Before an fsync, which makes it durable. `sync`: of the file's data.
  Result<> settle(InodeNumber inode, int blob, const std::function<Result<>()>& sync);
  // Where the file ends, if its blob goes on.
  std::optional<uint64_t> size(InodeNumber inode) const;

 private:
  std::shared_ptr<Adoption> find(InodeNumber inode) const;
  void forget(const Adoption& adoption);
  Result<std::shared_ptr<Adoption>> try_begin(const OpenFile& file, const std::string& name,
                                              const Guesses::Found& guessed);
  Result<Adoption::Guess> open_guess(InodeNumber guess);
  Result<> note_shared(const Adoption::Guess& guess, Result<> cloned);
  std::vector<std::shared_ptr<Adoption>> take_closed();
  void run();
  void settle_closed();
  Result<> settle_in_background(Adoption& adoption);
  Result<> empty(InodeNumber inode);

  meta::Store& store_;
  meta::Tree& tree_;
  OpenFileTable& files_;
  Notifications& notifications_;
  WriteErrors& write_errors_;
  Counters& counters_;
  std::atomic<size_t> count_{0};  // of adoptions_
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<InodeNumber, std::shared_ptr<Adoption>> adoptions_;  // guarded by mutex_
  std::vector<std::shared_ptr<Adoption>> closed_;                         // guarded by mutex_; to be settled
  bool many_ = false;     // guarded by mutex_; of them, since the last look
  bool running_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace ckptfs::fs
