// Records of the index that cannot be what was written. Each is an error. What is decided by one is then not decided.
#include <gmock/gmock.h>

#include "meta/steps/ledger.h"
#include "meta/steps/policy.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using testing::HasSubstr;

class DamagedRecordsTest : public ScratchStore {
 protected:
  void damage(const std::string& xattr, const std::string& text) {
    Tree::Change change = tree().begin();
    change.batch.put_xattr(at("/steps"), xattr, text);
    ASSERT_TRUE(tree().commit(std::move(change)));
  }
};

// Rules that cannot be read remove nothing, and are not replaced by a rule that is set.
TEST_F(DamagedRecordsTest, Policy) {
  ASSERT_TRUE(set_rules(*store_, at("/steps"), {{"keep_last", "3"}}, {1000, 1000}));
  ASSERT_TRUE(policy_of(*store_, at("/steps")));
  for (const char* text : {"keep_last\n", "changed soon\n", "left_alone -\n", "set_by keep_last x\n", "armed_by\n",
                           "armed_by keep_last 1000 1000 x\n", "set keep_last\n", "unset keep_last=3\n"}) {
    damage("user.ckptfs.policy", text);
    const auto policy = policy_of(*store_, at("/steps"));
    ASSERT_FALSE(policy) << text;
    EXPECT_EQ(policy.error().errno_value(), EIO) << text;
    EXPECT_THAT(policy.error().message(), HasSubstr("damaged policy"));
    EXPECT_FALSE(set_rules(*store_, at("/steps"), {{"keep_last", "1"}}, {1000, 1000})) << text;
    EXPECT_EQ(store_->index().xattr(at("/steps"), "user.ckptfs.policy").value(), text);
  }
}

TEST_F(DamagedRecordsTest, WhoWroteToAStepAndWhen) {
  for (const char* text : {"run boot-1 pid:[1] 17\n", "seen 7 1000 yesterday\n", "whole\n", "unfinished\n", "x 1\n"}) {
    damage("user.ckptfs.ledger", text);
    EXPECT_EQ(ledger_of(*store_, at("/steps")).error().errno_value(), EIO) << text;
    EXPECT_EQ(change_ledger(*store_, at("/steps"), [](LedgerEntry&) {}).error().errno_value(), EIO) << text;
  }
}

TEST_F(DamagedRecordsTest, TheFormatOfTheIndex) {
  Tree::Change change = tree().begin();
  change.batch.put_number(kFormatKey, 99);
  ASSERT_TRUE(tree().commit(std::move(change)));
  close();
  const auto opened = Store::open({folder_, 1000, 1000, true});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().errno_value(), EPROTONOSUPPORT);
  EXPECT_THAT(opened.error().message(), HasSubstr("the index has format version 99"));
}

}  // namespace
}  // namespace ckptfs::meta
