#include "fs/open/write_errors.h"

#include "tests/meta/scratch_store.h"

namespace ckptfs::fs {
namespace {

class WriteErrorsTest : public meta::ScratchStore {
 protected:
  Counters counters_;
};

// A full disk makes a few files fail thousands of writes.
TEST_F(WriteErrorsTest, AFileThatFailsOftenPushesOutNoOther) {
  WriteErrors errors(tree(), counters_);
  const meta::InodeNumber quiet = make_file("/quiet"), loud = make_file("/loud");
  errors.failed(quiet, WriteFailure::fdatasync, Error(EIO));
  for (size_t i = 0; i <= WriteErrors::kMaximum; ++i) errors.failed(loud, WriteFailure::write, Error(ENOSPC));
  EXPECT_TRUE(errors.last(loud));
  ASSERT_TRUE(errors.last(quiet));
  EXPECT_NE(errors.last(quiet)->find("fdatasync"), std::string::npos) << *errors.last(quiet);
}

}  // namespace
}  // namespace ckptfs::fs
