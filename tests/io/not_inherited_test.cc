#include "io/not_inherited.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "io/fd.h"

namespace ckptfs::io {
namespace {

// Asks in a forked child.
bool is_open_in_child(int descriptor) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status) == 1;
}

TEST(NotInherited, AChildOfForkDoesNotHaveThem) {
  const Fd file(::open("/dev/null", O_RDONLY)), other(::open("/dev/null", O_RDONLY));
  EXPECT_TRUE(is_open_in_child(file.get()));
  std::optional<NotInherited> guard(std::vector<int>{file.get(), -1});
  EXPECT_FALSE(is_open_in_child(file.get()));
  EXPECT_TRUE(is_open_in_child(other.get()));
  EXPECT_GE(::fcntl(file.get(), F_GETFD), 0) << "the parent keeps it";
  {
    const NotInherited moved = std::move(*guard);
    guard.reset();
    EXPECT_FALSE(is_open_in_child(file.get()));
  }
  EXPECT_TRUE(is_open_in_child(file.get()));
}

}  // namespace
}  // namespace ckptfs::io
