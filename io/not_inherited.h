// Descriptors that a child of fork(2) must not keep. O_CLOEXEC closes them only at exec. A child that never calls exec,
// such as a worker of torch's DataLoader, would keep a file open for writing as long as it lives. So these are closed
// in the child of every fork.
//
// Thread-safe, also against concurrent forks.
#pragma once

#include <vector>

namespace ckptfs::io {

class NotInherited {
 public:
  explicit NotInherited(std::vector<int> descriptors);
  NotInherited(NotInherited&& other) noexcept;
  NotInherited& operator=(NotInherited&&) = delete;
  // The descriptors belong to the caller, who closes them just before or after this.
  ~NotInherited();

 private:
  std::vector<int> descriptors_;
};

}  // namespace ckptfs::io
