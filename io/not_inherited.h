// Descriptors that a child of fork(2) does not keep: O_CLOEXEC closes at exec, and a worker that never calls it (as
// those of torch's DataLoader) would hold a file open for writing as long as it lives.
//
// Thread safety: all of it, also of forks meanwhile.
#pragma once

#include <vector>

namespace ckptfs::io {

class NotInherited {
 public:
  explicit NotInherited(std::vector<int> descriptors);
  NotInherited(NotInherited&& other) noexcept;
  NotInherited& operator=(NotInherited&&) = delete;
  // The descriptors, which are the caller's, are about to be closed, or have been.
  ~NotInherited();

 private:
  std::vector<int> descriptors_;
};

}  // namespace ckptfs::io
