#include "meta/remote/commit.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"

namespace ckptfs::meta::remote {
namespace {

using std::chrono::seconds;

// Its lists have times, and leave out what a test says.
class ListingStore : public io::testing::MemoryStore {
 public:
  Result<io::ObjectPage> list(const std::string& prefix, const std::string& token,
                              const io::RequestLimits& limits) override {
    TRY_ASSIGN(io::ObjectPage page, MemoryStore::list(prefix, token, limits));
    std::erase_if(page.objects, [&](const io::ObjectInfo& object) { return object.key == hidden; });
    for (io::ObjectInfo& object : page.objects) {
      object.changed = std::chrono::system_clock::time_point(seconds(times[object.key]));
    }
    return page;
  }
  std::map<std::string, int> times;
  std::string hidden;
};

class CommitTest : public ::testing::Test {
 protected:
  static Commit commit_of(const std::string& tag, uint64_t n, uint32_t slots = 1) {
    Commit commit{{tag, n}, {}, {}, "node0"};
    for (uint32_t slot = 0; slot < slots; ++slot) {
      commit.parts.push_back({{tag, slot, "0123456789abcdef"}, slot + 1, io::Digest{std::byte{7}}, 4711, 3, 1 << 20});
    }
    return commit;
  }
  void put(const std::string& key, const std::string& text, int time) {
    store_.times[key] = time;
    ASSERT_OK(store_.put(key, io::content_of(std::string_view(text)), io::PutMode::make, {}));
  }
  void commit(const std::string& tag, uint64_t n, int time) {
    put(step_key({tag, n}), text_of(commit_of(tag, n)), time);
  }
  void decide_void(const std::string& tag, uint64_t n) { put(step_key({tag, n}), text_of(Void{}), 0); }
  void bury(const std::string& tag, uint64_t n) { put(gone_key({tag, n}), "{}", 0); }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    const auto steps = list_steps(store_, {}).value();
    for (const CommittedStep& step : steps) found.push_back(step.name());
    return found;
  }

  ListingStore store_;
};

TEST_F(CommitTest, TextsGoThereAndBack) {
  Commit commit = commit_of("global_step5", 3, 4);
  commit.notes = {"config.json: slots 0 and 1 hold different files"};
  const Commit again = parse_commit(text_of(commit), "key").value();
  EXPECT_EQ(again.name, commit.name);
  EXPECT_EQ(again.parts, commit.parts);
  EXPECT_EQ(again.notes, commit.notes);
  EXPECT_EQ(again.host, "node0");
  const Vote vote{digest_of(commit.parts)};
  EXPECT_EQ(parse_vote(text_of(vote), "key").value(), vote);
  EXPECT_EQ(parse_void(text_of(Void{vote.parts, {}}), "step_5", "key").value().parts, vote.parts);
}

TEST_F(CommitTest, AVoidMayNameAPartOfItsTag) {
  const PushName part{"global_step5", 65'535, "fedcba9876543210"};
  const std::string text = text_of(Void{{}, part});
  EXPECT_EQ(text.find("global_step5"), std::string::npos) << "the key has the tag";
  EXPECT_EQ(parse_void(text, "global_step5", "key").value().ended, part);
  EXPECT_ERRNO(
      EBADMSG,
      parse_void(R"({"ckptfs":"void","version":2,"ended":"0","parts":")" + std::string(64, '0') + "\"}", "a", "key"));
}

TEST_F(CommitTest, AVoidIsShorterThanAnyCommit) {
  EXPECT_LE(text_of(Void{}).size(), kMostVoidBytes);
  EXPECT_LE((text_of(Void{{}, PushName{"a", 65'535, "fedcba9876543210"}}).size()), kMostVoidBytes);
  Commit least = commit_of("a", 1);
  least.host.clear();
  least.parts[0].size = 1;
  EXPECT_GT(text_of(least).size(), kMostVoidBytes);
}

TEST_F(CommitTest, TheDigestOfPartsTellsAllOfThem) {
  const PartList parts = commit_of("a", 1, 2).parts;
  EXPECT_EQ(digest_of(parts), digest_of(PartList(parts)));
  for (const auto& change : std::vector<std::function<void(PartName&)>>{
           [](PartName& part) { part.push.tag = "b"; }, [](PartName& part) { part.push.slot = 5; },
           [](PartName& part) { part.push.id = "0123456789abcdee"; }, [](PartName& part) { ++part.number; },
           [](PartName& part) { part.digest = {}; }, [](PartName& part) { ++part.size; }}) {
    PartList other = parts;
    change(other[1]);
    EXPECT_NE(digest_of(other), digest_of(parts));
  }
}

TEST_F(CommitTest, OtherTextsAreRefused) {
  const std::string text = text_of(commit_of("a", 1, 2));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    const size_t at = other.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return parse_commit(other.replace(at, from.size(), to), "steps/a/1");
  };
  EXPECT_ERRNO(EPROTO, changed("\"version\":2", "\"version\":3"));
  EXPECT_NE(changed("\"version\":2", "\"version\":3").error().message().find("steps/a/1: it is of version 3"),
            std::string::npos);
  EXPECT_ERRNO(EBADMSG, changed("\"commit\"", "\"vote\""));
  EXPECT_ERRNO(EBADMSG, changed("\"parts\"", "\"parth\""));
  EXPECT_ERRNO(EBADMSG, changed("a/0.", "a/1."));
  EXPECT_ERRNO(EBADMSG, changed("a/0.", "../0."));
  EXPECT_ERRNO(EBADMSG, changed("\"n\":1", "\"n\":-1"));
  EXPECT_ERRNO(EBADMSG, changed("07000", "x7000"));
  EXPECT_ERRNO(EBADMSG, parse_commit(text_of(Void{}), "key"));
  EXPECT_ERRNO(EBADMSG, parse_void(text, "step_5", "key"));
  EXPECT_ERRNO(EBADMSG, parse_vote("", "key"));
  EXPECT_ERRNO(EBADMSG, parse_vote("[1]", "key"));
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_ERRNO(EBADMSG, parse_commit(text.substr(0, length), "key"));
  }
}

TEST_F(CommitTest, StepsComeInTheOrderOfTheirCommits) {
  EXPECT_EQ(names(), std::vector<std::string>{});
  commit("step_10", 1, 20);
  commit("step_9", 1, 20);  // in the same second
  commit("step_1", 1, 10);
  commit("step_1", 2, 30);
  put(".ckptfs/steps/somebody", "x", 0);
  put(".ckptfs/steps/step_1/0", "x", 0);
  put(".ckptfs/steps/step_1/1/more", "x", 0);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_1", "step_9", "step_10", "step_1~2"}));
  EXPECT_EQ(newest(list_steps(store_, {}).value())->name(), "step_1~2");
  bury("step_1", 2);
  EXPECT_TRUE(list_steps(store_, {}).value().back().gone);
  EXPECT_EQ(newest(list_steps(store_, {}).value())->name(), "step_10");
  EXPECT_FALSE(newest({}));
}

// The link was down. Then the newest step went first, and those before it after it.
TEST_F(CommitTest, ALateCommitStandsBeforeTheNewerOnes) {
  const auto commit_late = [this](const std::string& tag, int time) {
    Commit late = commit_of(tag, 1);
    late.late = true;
    const std::string text = text_of(late);
    EXPECT_TRUE(parse_commit(text, "key").value().late);
    put(step_key({tag, 1}), text, time);
  };
  commit("step_900", 1, 10);  // of a run before this one
  commit("step_100", 1, 20);
  commit("step_400", 1, 30);
  commit_late("step_300", 40);
  commit_late("step_200", 50);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_900", "step_100", "step_200", "step_300", "step_400"}));
  commit_late("unnumbered", 60);
  EXPECT_EQ(names().back(), "step_400") << "something newer was there when it was committed";
}

TEST_F(CommitTest, OnlyALateCommitHasTheLengthOfOne) {
  Commit commit = commit_of("a", 1);
  commit.host.assign(kLateBytes - text_of(commit).size() - 3, 'x');
  for (int longer = 0; longer < 10; ++longer) {
    commit.host += 'x';
    commit.late = false;
    const std::string text = text_of(commit);
    ASSERT_NE(text.size() % kLateBytes, 0U);
    ASSERT_FALSE(parse_commit(text, "key").value().late);
    commit.late = true;
    ASSERT_EQ(text_of(commit).size() % kLateBytes, 0U);
  }
}

TEST_F(CommitTest, VoidsAndTombstonesDoNotMoveNames) {
  decide_void("a", 1);
  commit("a", 2, 10);
  decide_void("a", 3);
  commit("a", 4, 20);
  bury("a", 2);
  const TagDecisions decisions = list_decisions(store_, "a", {}).value();
  EXPECT_EQ(decisions.undecided, 5U);
  ASSERT_EQ(decisions.commits.size(), 2U);
  EXPECT_EQ(decisions.commits[0].decision.n, 2U);
  EXPECT_EQ(decisions.commits[0].ordinal, 1U);
  EXPECT_TRUE(decisions.commits[0].gone);
  EXPECT_EQ(decisions.commits[1].name(), "a~2");
  EXPECT_FALSE(decisions.commits[1].gone);
  EXPECT_EQ(find_step(store_, "a", {}).value().decision.n, 2U);
  EXPECT_EQ(find_step(store_, "a~2", {}).value().decision.n, 4U);
  for (const char* name : {"a~3", "a~1", "a~02", "a~", "b", "", "..", "a/b", "a~2~2", "a~99999999999999999999"}) {
    EXPECT_ERRNO(ENOENT, find_step(store_, name, {}));
  }
  EXPECT_EQ(list_decisions(store_, "none", {}).value().undecided, 1U);
}

TEST_F(CommitTest, AListThatIsNotWholeIsAnError) {
  for (uint64_t n = 1; n <= 3; ++n) commit("a", n, 10);
  store_.hidden = ".ckptfs/steps/a/2";
  EXPECT_ERRNO(EIO, list_steps(store_, {}));
  EXPECT_ERRNO(EIO, list_decisions(store_, "a", {}));
  EXPECT_ERRNO(EIO, find_step(store_, "a", {}));
  store_.hidden = ".ckptfs/steps/a/3";
  EXPECT_OK(list_steps(store_, {}));
  bury("a", 3);
  EXPECT_ERRNO(EIO, list_steps(store_, {}));
}

TEST_F(CommitTest, AListThatFailsIsAnError) {
  commit("a", 1, 10);
  store_.fate = [](const std::string& operation, const std::string&) {
    return operation == "list" ? ListingStore::Fate::forbidden : ListingStore::Fate::done;
  };
  EXPECT_ERRNO(EACCES, list_steps(store_, {}));
}

TEST_F(CommitTest, ACommitIsFetchedByItsName) {
  commit("a", 1, 10);
  EXPECT_EQ(fetch_commit(store_, {"a", 1}, {}).value().parts.size(), 1U);
  EXPECT_ERRNO(ENOENT, fetch_commit(store_, {"a", 2}, {}));
  put(".ckptfs/steps/a/2", text_of(commit_of("a", 1)), 10);
  EXPECT_ERRNO(EBADMSG, fetch_commit(store_, {"a", 2}, {}));
  decide_void("a", 3);
  EXPECT_ERRNO(EBADMSG, fetch_commit(store_, {"a", 3}, {}));
}

}  // namespace
}  // namespace ckptfs::meta::remote
