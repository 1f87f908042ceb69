// Predicts which file a new file will be a copy of. There are two ways:
//   - The same thread has a file of the same name open for reading (shutil.copyfile).
//   - In a step: the file at the same place in the step before it, if the writer may read that (tar, rsync, and whoever
//     saves much the same again).
// After wrong predictions each of the two backs off (fs/adopt/prediction_backoff.h): where everything changes from step
// to step, predictions cost next to nothing.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fs/adopt/prediction_backoff.h"
#include "io/mutex.h"
#include "meta/tree/tree.h"
#include "meta/types.h"

namespace ckptfs::fs {

class SourcePredictor {
 public:
  // `name_of` tells the name by which the kernel knows an inode.
  SourcePredictor(const meta::Tree& tree, std::function<std::string(meta::InodeNumber)> name_of)
      : tree_(tree), name_of_(std::move(name_of)) {}

  // `reader`, a thread, has `inode` open for reading, from now on to the same call of closed().
  void opened(const meta::Caller& reader, meta::InodeNumber inode);
  void closed(pid_t thread, meta::InodeNumber inode);

  enum class By { reader, step, names_lacking };
  struct Prediction {
    // Empty: none. Several: the step before has no file of this name. The new file may be renamed later, so they are
    // the files of the step before whose names the new step lacks.
    std::vector<meta::InodeNumber> candidates;
    By by = By::reader;
  };
  // Predicts the source of a new file `name` in `folder`.
  Prediction predict(meta::InodeNumber folder, const std::string& name, const meta::Caller& writer);
  // Learns whether the prediction was right.
  void judge(const std::string& name, By by, bool right);

 private:
  std::optional<meta::InodeNumber> find_reading(const meta::Caller& writer, const std::string& name) const;
  std::vector<meta::InodeNumber> lacking(meta::InodeNumber folder, meta::InodeNumber before,
                                         const meta::Caller& writer) const;
  std::optional<meta::InodeNumber> previous_folder(meta::InodeNumber folder, const meta::Caller& writer) const;
  bool may_read(meta::InodeNumber inode, const meta::Caller& reader) const;
  // `reader` has the file open for reading already. May the file's blocks be shared with a copy of the reader's?
  bool may_be_shared(meta::InodeNumber inode, const meta::Caller& reader) const;
  std::optional<meta::InodeNumber> step_before(meta::InodeNumber series, meta::InodeNumber step) const;
  std::optional<meta::InodeNumber> remembered_before(meta::InodeNumber step) const;

  struct Reading {
    meta::InodeNumber inode = 0;
    uint32_t uid = 0;  // whose thread it was: another user's may have its number later
  };

  static constexpr size_t kMostCandidates = 1024;
  static constexpr size_t kMostSteps = 1024;

  const meta::Tree& tree_;
  const std::function<std::string(meta::InodeNumber)> name_of_;
  mutable io::Mutex mutex_;
  std::unordered_map<pid_t, std::vector<Reading>> reading_ GUARDED_BY(mutex_);                  // by thread
  mutable std::unordered_map<meta::InodeNumber, meta::InodeNumber> before_ GUARDED_BY(mutex_);  // steps; 0: none
  // A copier is hardly ever wrong; of a step much the same files change as of the one before.
  PredictionBackoff readers_{{.first_pause = 4, .longest_pause = 64, .alike = false}};
  PredictionBackoff steps_{{.first_pause = 16, .longest_pause = 256, .alike = true}};
};

}  // namespace ckptfs::fs
