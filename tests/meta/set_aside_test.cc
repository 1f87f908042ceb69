#include "meta/names.h"
#include "meta/steps/ledger.h"
#include "meta/steps/partial.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

constexpr const char* kTag = "global_step1";
const std::string kStepPath = std::string("/steps/") + kTag;

class SetAsideTest : public ScratchStore {
 protected:
  void SetUp() override {
    ScratchStore::SetUp();
    if (IsSkipped()) return;
    make_folder(kStepPath);
    make_file(kStepPath + "/mp_rank_00_model_states.pt", "states");
  }
};

TEST_F(SetAsideTest, TakesTheNextFreeName) {
  const InodeNumber step = at(kStepPath);
  make_folder("/steps/" + set_aside_name(kTag, 1));
  const auto name = set_aside(*store_, at("/steps"), step, kTag);
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(name.value(), set_aside_name(kTag, 2));
  EXPECT_EQ(at("/steps/" + name.value()), step);
  EXPECT_FALSE(tree().resolve(kStepPath));
  expect_clean_fsck();
}

// So that its files are doubted once it has its own name again.
TEST_F(SetAsideTest, ThatItIsOfTwoSavesStaysKnown) {
  const InodeNumber step = at(kStepPath);
  ASSERT_TRUE(change_ledger(*store_, step, [this](LedgerEntry& entry) {
    note_whole(entry, at("/steps"), WallTime(std::chrono::seconds(10)), {});
    note_writer(entry, std::nullopt, WallTime(std::chrono::seconds(20)));
  }));
  ASSERT_TRUE(set_aside(*store_, at("/steps"), step, kTag));
  reopen();
  const LedgerEntry known = ledger_of(*store_, step).value();
  EXPECT_FALSE(known.unfinished);
  EXPECT_TRUE(known.is_written_again());
}

TEST_F(SetAsideTest, AStepWithoutAFreeNameStays) {
  const InodeNumber step = at(kStepPath);
  for (unsigned attempt = 1; attempt <= 1000; ++attempt) make_folder("/steps/" + set_aside_name(kTag, attempt));
  const auto name = set_aside(*store_, at("/steps"), step, kTag);
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().errno_value(), EEXIST);
  EXPECT_EQ(at(kStepPath), step);
}

TEST_F(SetAsideTest, AnotherStepOfTheNameStays) {
  const InodeNumber step = at(kStepPath);
  ASSERT_TRUE(tree().rename(at("/steps"), kTag, at("/steps"), "moved", 0));
  const InodeNumber other = make_folder(kStepPath);
  const auto name = set_aside(*store_, at("/steps"), step, kTag);
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().errno_value(), ENOENT);
  EXPECT_EQ(at(kStepPath), other);
  EXPECT_EQ(at("/steps/moved"), step);
}

}  // namespace
}  // namespace ckptfs::meta
