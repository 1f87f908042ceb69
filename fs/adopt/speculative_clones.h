// The speculative clones of a mount (fs/adopt/speculative_clone.h), by inode: those that are being written, and those
// that were closed and are not durable yet. A thread makes closed ones durable, within a second or so.
//
// Thread safety: all of it. Lock: mutex_ (a leaf), never held while a SpeculativeClone does anything.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fs/adopt/inline_block_dedup.h"
#include "fs/adopt/source_predictor.h"
#include "fs/adopt/speculative_clone.h"
#include "fs/base/counters.h"
#include "fs/kernel/notifications.h"
#include "fs/open/open_files.h"
#include "fs/open/write_errors.h"
#include "io/mutex.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

class SpeculativeClones {
 public:
  SpeculativeClones(meta::Store& store, OpenFileTable& files, Notifications& notifications, WriteErrors& write_errors,
                    Counters& counters);
  ~SpeculativeClones();

  void start();
  // Ends the thread and makes all of them durable; the error says how many are not. A second call does nothing.
  Result<> stop();

  SourcePredictor predictor;

  // May an open with these flags, of a file that was just made or emptied, adopt?
  static bool may_adopt(int flags);
  // Likewise, as a clone?
  static bool may_clone(int flags);
  // Begins a clone of an empty file that has no other open than the one on its way. Null: there can be no clone, and
  // the file is written plainly.
  std::shared_ptr<SpeculativeClone> begin(const OpenFile& file, const std::string& name,
                                          const SourcePredictor::Prediction& prediction);
  // For a file that cannot begin as a clone. Needs no call of closed(). Null: none of the candidates can be used.
  std::unique_ptr<InlineBlockDedup> begin_blocks(const OpenFile& file, const std::string& name,
                                                 std::vector<InodeNumber> candidates);
  // The handle that wrote has gone, or will never come.
  void closed(const std::shared_ptr<SpeculativeClone>& clone);

  // Is it being adopted, or was until a moment ago?
  bool knows(InodeNumber inode) const { return find(inode) != nullptr; }
  bool knows_any() const { return count_ != 0; }
  // Truncates the file's blob to its written end. To be called before anything but the WRITEs of the adopting handle
  // happens to a file. Does nothing for most files.
  Result<> truncate_to_written(InodeNumber inode);
  // Before an fsync, which makes it durable. `sync`: of the file's data.
  Result<> make_durable(InodeNumber inode, int blob, const std::function<Result<>()>& sync);
  // Where the file ends, if its blob goes on.
  std::optional<uint64_t> size(InodeNumber inode) const;

 private:
  std::shared_ptr<SpeculativeClone> find(InodeNumber inode) const;
  void forget(const SpeculativeClone& clone);
  Result<std::shared_ptr<SpeculativeClone>> try_begin(const OpenFile& file, const std::string& name,
                                                      const SourcePredictor::Prediction& prediction);
  Result<SpeculativeClone::Source> open_source(InodeNumber source);
  Result<> note_shared(const SpeculativeClone::Source& source, Result<> cloned);
  std::vector<std::shared_ptr<SpeculativeClone>> take_closed();
  void run();
  void make_closed_durable() EXCLUDES(mutex_);
  Result<> make_durable_in_background(SpeculativeClone& clone) EXCLUDES(mutex_);
  Result<> empty(InodeNumber inode);

  meta::Store& store_;
  meta::Tree& tree_;
  OpenFileTable& files_;
  Notifications& notifications_;
  WriteErrors& write_errors_;
  Counters& counters_;
  std::atomic<size_t> count_{0};  // of adoptions_
  mutable io::Mutex mutex_;
  io::CondVar wake_;
  std::unordered_map<InodeNumber, std::shared_ptr<SpeculativeClone>> clones_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<SpeculativeClone>> closed_ GUARDED_BY(mutex_);  // to be made durable
  bool many_ GUARDED_BY(mutex_) = false;                                      // of them, since the last look
  bool running_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ckptfs::fs
