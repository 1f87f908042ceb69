// What a file that is about to be written will hold (design section 8): the one of the same name that the same thread
// has open for reading, as shutil.copyfile does. A name whose guess was wrong is not guessed again for a while.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "meta/types.h"

namespace ckptfs::fs {

class Guesses {
 public:
  // `thread` has `inode` open for reading, from now on to the same call of closed().
  void opened(pid_t thread, meta::InodeNumber inode);
  void closed(pid_t thread, meta::InodeNumber inode);

  // The last that `thread` opened of those it has open for reading whose name is `name`; `name_of` tells an inode's.
  std::optional<meta::InodeNumber> find(pid_t thread, const std::string& name,
                                        const std::function<std::string(meta::InodeNumber)>& name_of) const;
  void disappointed(const std::string& name);

 private:
  static constexpr std::chrono::minutes kForget{10};
  static constexpr size_t kMaximumNames = 4096;

  mutable std::mutex mutex_;
  std::unordered_map<pid_t, std::vector<meta::InodeNumber>> reading_;                       // guarded by mutex_
  std::unordered_map<std::string, std::chrono::steady_clock::time_point> disappointments_;  // guarded by mutex_
};

}  // namespace ckptfs::fs
