#include "meta/blobs/written_ends.h"

#include "io/fault.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

#ifdef CKPTFS_FAULT_POINTS
class WrittenEndsTest : public ScratchStore {
 protected:
  std::unique_ptr<WrittenEnds> open_ends() {
    auto written_ends = WrittenEnds::open(folder_ + "/frontiers_of_a_test", store_->index());
    EXPECT_TRUE(written_ends) << written_ends.error().message();
    return std::move(written_ends).value();
  }
};

// If a blob had two slots, the next start could take either.
TEST_F(WrittenEndsTest, ABlobHasOneSlotWhereItsFirstCouldNotBeEmptied) {
  {
    const auto written_ends = open_ends();
    ASSERT_TRUE(written_ends->begin({}));
    auto first = written_ends->take(7).value();
    auto other = written_ends->take(8).value();
    ASSERT_TRUE(first->set(100));
    io::set_fault("frontiers.empty", "1:error:EIO");
    first->give_back();
    other->give_back();
    io::set_fault("frontiers.empty", "");
    auto second = written_ends->take(7).value();
    ASSERT_TRUE(second->set(50));
  }
  const auto left = open_ends();
  EXPECT_EQ(left->left(7), 50U);
  EXPECT_EQ(left->left(8), std::nullopt);
}

// The first copy ended before the daemon was killed, the second one had not.
TEST_F(WrittenEndsTest, AnEmptySlotHidesNoOther) {
  const auto written_ends = open_ends();
  ASSERT_TRUE(written_ends->begin({}));
  auto first = written_ends->take(7).value();
  auto second = written_ends->take(8).value();
  ASSERT_TRUE(first->set(100));
  ASSERT_TRUE(second->set(50));
  first->give_back();
  const auto left = open_ends();
  EXPECT_EQ(left->left(7), std::nullopt);
  EXPECT_EQ(left->left(8), 50U);
}
#endif

}  // namespace
}  // namespace ckptfs::meta
