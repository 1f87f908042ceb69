// What a remote mount consists of. Its operations work on this.
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fs/base/handle_table.h"
#include "fs/base/tasks.h"
#include "fs/base/user_lanes.h"
#include "fs/kernel/session.h"
#include "fs/remote_mount/catalog.h"
#include "fs/remote_mount/places.h"
#include "fs/remote_mount/read_ahead.h"
#include "fs/remote_mount/remote_mount_options.h"
#include "fs/remote_mount/unanswered.h"
#include "meta/remote/chunk_cache.h"
#include "meta/remote/chunk_reader.h"
#include "meta/remote/remote_facts.h"

namespace ckptfs::fs::remote_mount {

// An open file: of a step, or of its view.
struct OpenedFile {
  meta::remote::RemoteFile file;  // no step: a file of a view
  std::shared_ptr<const RemoteView> view;
  views::Content content;  // of that file
  ReadAhead ahead;

  uint64_t size() const { return view ? content.size() : file.size(); }
};
// A request that was interrupted may go on to use the file after its RELEASE.
struct FileHandle {
  std::shared_ptr<OpenedFile> opened;
};

struct FolderHandle {
  struct Name {
    std::string name;
    InodeNumber inode = 0;
    mode_t type = 0;
  };
  std::vector<Name> names;
};

// So that a thousand reads that fail alike are one line of the log in a minute.
class RepeatedWords {
 public:
  bool is_new(const std::string& words) {
    const auto now = std::chrono::steady_clock::now();
    const io::MutexLock lock(mutex_);
    if (words == last_ && now - told_ < std::chrono::minutes(1)) return false;
    last_ = words;
    told_ = now;
    return true;
  }

 private:
  io::Mutex mutex_;
  std::string last_ GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point told_ GUARDED_BY(mutex_);
};

struct Parts {
  RemoteMountOptions options;
  std::string id;
  std::string socket;
  uint32_t uid = 0, gid = 0;  // of what is no step's
  timespec mounted{};
  std::unique_ptr<io::ObjectStore> store;
  meta::remote::RemoteFacts facts;
  std::unique_ptr<meta::remote::ChunkCache> cache;
  std::unique_ptr<meta::remote::ChunkReader> reader;
  Ownership ownership;
  std::unique_ptr<Catalog> catalog;
  std::atomic<bool> stop{false};  // set when the mount ends
  Unanswered unanswered;
  Handles<FileHandle> files;
  Handles<FolderHandle> folders;
  std::atomic<uint64_t> requests{0}, errors{0};
  RepeatedWords failures;  // that are in the log
  std::unique_ptr<Session> session;
  std::atomic<Session*> to_stop{nullptr};  // null: it is gone, or was never there
  Tasks tasks;
  UserLanes lanes{tasks};

  // Of all that one request of the kernel asks for.
  io::RequestLimits limits() const {
    io::RequestLimits limits = io::RequestLimits::within(options.time, &stop);
    limits.in_all = true;
    return limits;
  }
};

}  // namespace ckptfs::fs::remote_mount
