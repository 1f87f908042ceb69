// Finds runs of DeepSpeed that resume without their optimizer's state.
//
// With an optimizer on NVMe, DeepSpeed's own load_checkpoint reads a step's *_model_states.pt and copies the step's
// swap files over the live ones. Adam's moments and step are then begun anew, without a word. What loses nothing
// (ckptfs.deepspeed, ckptfs.patch) reads the step's *_optim_states.pt before it copies. So the sign is a thread that
//   - has read *_model_states.pt of a step, but not *_optim_states.pt,
//   - has just opened a file of the step's offloaded_tensors, and
//   - empties a live swap file of the same name.
// `cp` and rsync read no *_model_states.pt first into the same place. Each step is told of once: by the log, by
// `ckptfs status`, and by the page.
//
// Not seen: a thread whose *_model_states.pt was loaded past the mount (ckptfs.deepspeed.CheckpointEngine), or whose
// process lives where the daemon cannot tell its number.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "io/mutex.h"
#include "meta/tree/tree.h"
#include "meta/types.h"

namespace ckptfs::fs {

class ResumeWatch {
 public:
  explicit ResumeWatch(const meta::Tree& tree) : tree_(tree) {}

  // `reader`, a thread, opens the file `name` for reading. Costs next to nothing if the name is of no such file.
  void opened(const meta::Caller& reader, meta::InodeNumber inode, const meta::InodeRecord& record,
              const std::string& name);
  // `writer`, a thread, has made or emptied the live swap file `name`.
  void emptied(const meta::Caller& writer, const std::string& name);

  // The steps that runs have resumed from without their optimizer's state since the mount; at most 16, the newest.
  std::vector<std::string> lossy() const;
  // Of how many steps the log has told since the mount.
  uint64_t count() const { return count_; }

 private:
  // What a thread has read of the step that it reads now.
  struct Reading {
    meta::InodeNumber step = 0;
    bool model = false;
    bool optimizer = false;
    std::string swap_file;  // the one that it opened last
  };

  void tell(meta::InodeNumber step);

  const meta::Tree& tree_;
  std::atomic<uint64_t> count_{0};
  mutable io::Mutex mutex_;
  std::unordered_map<pid_t, Reading> readings_ GUARDED_BY(mutex_);  // by thread
  std::unordered_set<meta::InodeNumber> told_ GUARDED_BY(mutex_);
  std::vector<std::string> lossy_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs
