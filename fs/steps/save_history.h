// The newest saves since the mount, for the page: those that `ckptfs save` and the xattr took, and steps that
// frameworks wrote file by file. The latter are taken to last from the mkdir of their folder until the last change in
// it. And the last save and the last load past the mount, with the times of their ranks.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/mutex.h"
#include "meta/formats/manifest.h"
#include "meta/time.h"
#include "meta/types.h"

namespace ckptfs::fs {

struct TakenSave {
  std::string step;       // its path
  bool by_files = false;  // by somebody who wrote them; else by a save
  meta::WallTime when;    // it ended
  std::chrono::nanoseconds took{};
  uint64_t bytes = 0;  // apparent; of a save
  std::string error;   // why it failed; empty: it did not
};

// A step that the ranks of a run saved or loaded past the mount, with the times that they told.
struct MovedByRanks {
  std::string step;  // its path
  meta::formats::RankTimes times;
};

class SaveHistory {
 public:
  static constexpr size_t kMost = 100;

  void add(TakenSave save);
  // A folder was made; it may become a step.
  void made(meta::InodeNumber folder);
  // A step was found to be complete that no save took: the first time counts, what is done to it later is no save.
  // Nothing is known of one that was made before the mount.
  void complete(meta::InodeNumber step, const std::string& path, meta::WallTime changed);
  enum class Way { saved, loaded };
  void moved_by_ranks(Way way, MovedByRanks step);
  // The last one, if any.
  std::optional<MovedByRanks> last_by_ranks(Way way) const;
  // The oldest first.
  std::vector<TakenSave> all() const;

 private:
  static constexpr size_t kMostMade = 4096;

  mutable io::Mutex mutex_;
  std::deque<TakenSave> saves_ GUARDED_BY(mutex_);
  std::map<Way, MovedByRanks> by_ranks_ GUARDED_BY(mutex_);  // the last ones
  // Of those not known to be complete. Inode numbers ascend, so the first are the oldest.
  std::map<meta::InodeNumber, meta::WallTime> made_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs
