#include "meta/remote/commit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "meta/remote/json_fields.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

const std::string kId = "0123456789abcdef", kOtherId = "fedcba9876543210";

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
  // The decision about a save of this tag. `time`: its order.
  static DecisionName about(const std::string& tag, uint64_t time, const std::string& id = kId) {
    return {{1, time}, tag, id};
  }
  static Commit commit_of(const DecisionName& name, uint32_t slots = 1) {
    Commit commit{name, {}, {}, "node0"};
    for (uint32_t slot = 0; slot < slots; ++slot) {
      const PushName push{name.tag, slot, slot == 0 ? name.id : kOtherId};
      commit.parts.push_back({push, io::Digest{std::byte{7}}, 4711, 3, 1 << 20});
    }
    return commit;
  }
  // `when`: by the server's clock.
  void put(const std::string& key, const std::string& text, int when) {
    store_.times[key] = when;
    ASSERT_OK(store_.put(key, io::content_of(std::string_view(text)), io::PutMode::make, {}));
  }
  void commit(const DecisionName& name, int when) { put(step_key(name), text_of(commit_of(name)), when); }
  void decide_void(const DecisionName& name) { put(step_key(name), void_text(), 0); }
  void bury(const DecisionName& name) { put(gone_key(name), "{}", 0); }
  std::vector<CommittedStep> steps() { return list_steps(store_, {}).value(); }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const CommittedStep& step : steps()) found.push_back(step.name());
    return found;
  }

  ListingStore store_;
};

TEST_F(CommitTest, TextsGoThereAndBack) {
  Commit commit = commit_of(about("global_step5", 3), 4);
  commit.notes = {"config.json: slots 0 and 1 hold different files"};
  const Commit again = parse_commit(text_of(commit), "key").value();
  EXPECT_EQ(again.name, commit.name);
  EXPECT_EQ(again.parts, commit.parts);
  EXPECT_EQ(again.notes, commit.notes);
  EXPECT_EQ(again.host, "node0");
}

TEST_F(CommitTest, AVoidIsShorterThanAnyCommit) {
  EXPECT_EQ(void_text(), "{\"check\":\"5e2a5c12b9a63fe6\",\"ckptfs\":\"void\",\"version\":2}\n");
  EXPECT_LE(void_text().size(), kMostVoidBytes);
  Commit least = commit_of(about("a", 1));
  least.host.clear();
  least.parts[0].size = least.parts[0].files = least.parts[0].bytes = 1;
  EXPECT_GT(text_of(least).size(), kMostVoidBytes);
  EXPECT_OK(parse_commit(text_of(least), "key"));
}

TEST_F(CommitTest, OtherTextsAreRefused) {
  const std::string text = text_of(commit_of(about("a", 5), 2));
  json document = json::parse(text);
  document.erase(std::string("check"));
  const std::string without_check = line_of(document);
  // It is signed anew: so it is refused for what it says, and not as damaged.
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = without_check;
    const size_t at = other.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return parse_commit(checked_line(json::parse(other.replace(at, from.size(), to))), "steps/x");
  };
  const auto why_not = [&](const std::string& from, const std::string& to) {
    const auto commit = changed(from, to);
    EXPECT_ERRNO(EBADMSG, commit) << to;
    return commit ? std::string() : commit.error().message();
  };
  EXPECT_OK(changed("\"node0\"", "\"node1\"")) << "it can be read";
  EXPECT_ERRNO(EPROTO, changed("\"version\":2", "\"version\":3"));
  EXPECT_THAT(changed("\"version\":2", "\"version\":3").error().message(), HasSubstr("steps/x: it is of version 3"));
  EXPECT_THAT(why_not("\"commit\"", "\"void\""), HasSubstr("steps/x: it is \"void\", and should be \"commit\""));
  EXPECT_THAT(why_not("\"parts\"", "\"parth\""), HasSubstr("it has no list \"parts\""));
  EXPECT_THAT(why_not("a/0.", "a/1."), HasSubstr("part 0 of its \"parts\" is of another slot or step: a/1."))
      << "the part of slot 0 comes first";
  EXPECT_THAT(why_not("a/1.", "a/0."), HasSubstr("part 1 of its \"parts\" is of another slot or step: a/0."));
  EXPECT_THAT(why_not("a/1.", "b/1."), HasSubstr("part 1 of its \"parts\" is of another slot or step: b/1."));
  EXPECT_THAT(why_not("a/0.", "../0."), HasSubstr("its \"push\" is ../0." + kId + ", which names no push"));
  EXPECT_THAT(why_not(".a." + kId, ".b." + kId), HasSubstr("part 0 of its \"parts\" is of another slot or step: a/0."))
      << "its name is of another step than its parts";
  EXPECT_THAT(why_not(".a." + kId, ".a." + kOtherId), HasSubstr("not the one that it is named by"))
      << "it is named by another push of slot 0";
  EXPECT_THAT(why_not(".a." + kId, ".a." + kId.substr(1)), HasSubstr("its \"name\" is none of a decision"));
  EXPECT_THAT(why_not("\"name\"", "\"nome\""), HasSubstr("it has no text \"name\""));
  EXPECT_THAT(why_not("07000", "x7000"), HasSubstr("it has no digest \"digest\""));
  EXPECT_THAT(why_not("\"size\":4711", "\"size\":-4711"), HasSubstr("it has no number \"size\""));
  EXPECT_THAT(why_not("\"host\":\"node0\"", "\"host\":5"), HasSubstr("it has no text \"host\""));
  EXPECT_THAT(why_not("\"notes\":[]", "\"notes\":[5]"), HasSubstr("\"notes\" has something else than texts"));

  std::string edited = text;
  const auto damaged = parse_commit(edited.replace(edited.find("node0"), 5, "node1"), "steps/x");
  EXPECT_ERRNO(EBADMSG, damaged);
  EXPECT_THAT(damaged.error().message(), HasSubstr("steps/x: it was damaged"));
  const auto without = parse_commit(without_check, "steps/x");
  EXPECT_ERRNO(EBADMSG, without);
  EXPECT_THAT(without.error().message(), HasSubstr("it has no text \"check\""));

  EXPECT_ERRNO(EBADMSG, parse_commit(void_text(), "key"));
  EXPECT_ERRNO(EBADMSG, parse_commit("", "key"));
  EXPECT_ERRNO(EBADMSG, parse_commit("[1]" + std::string(2 * kMostVoidBytes, ' '), "key"));
  Commit none = commit_of(about("a", 5));
  none.notes = {std::string(kMostVoidBytes, 'x')};
  EXPECT_OK(parse_commit(text_of(none), "key"));
  none.parts.clear();
  const auto empty = parse_commit(text_of(none), "key");
  EXPECT_ERRNO(EBADMSG, empty);
  EXPECT_THAT(empty.error().message(), HasSubstr("its \"parts\" are empty"));
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_ERRNO(EBADMSG, parse_commit(text.substr(0, length), "key"));
  }
}

TEST_F(CommitTest, StepsComeInTheOrderOfTheirSaves) {
  EXPECT_EQ(names(), std::vector<std::string>{});
  commit(about("step_10", 200), 20);
  commit(about("step_9", 100), 90);  // its push was late
  commit(about("step_1", 50), 10);
  commit(about("step_1", 300), 30);  // saved again
  put(".ckptfs/steps/somebody", "x", 0);
  put(".ckptfs/steps/step_1/1", "x", 0);
  put(step_key(about("step_1", 400)) + "/more", std::string(1000, 'x'), 0);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_1", "step_9", "step_10", "step_1~2"}));
  EXPECT_EQ(newest(steps())->name(), "step_1~2");
  EXPECT_EQ(newest_of_tag(steps(), "step_1")->name(), "step_1~2");
  bury(about("step_1", 300));
  EXPECT_TRUE(steps().back().gone);
  EXPECT_EQ(newest(steps())->name(), "step_10");
  EXPECT_EQ(newest_of_tag(steps(), "step_1")->name(), "step_1~2") << "also if it is gone";
  EXPECT_FALSE(newest({}));
  EXPECT_FALSE(newest_of_tag(steps(), "step_2"));
}

// Slot 0 is another mount's since: whatever its clock says.
TEST_F(CommitTest, TheTermCountsBeforeTheTime) {
  commit({{2, 5}, "step_2", kId}, 10);
  commit({{1, 1'000'000}, "step_1", kId}, 20);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_1", "step_2"}));
}

// A step that was changed after it was saved is committed again, as the same save.
TEST_F(CommitTest, OfOneSaveTheLaterCommitIsTheNewerOne) {
  commit(about("step_1", 7, kOtherId), 10);
  commit(about("step_1", 7, kId), 20);
  commit(about("step_2", 8), 15);
  EXPECT_EQ(names(), (std::vector<std::string>{"step_1", "step_1~2", "step_2"}));
  EXPECT_EQ(find_step(store_, "step_1", {}).value().decision.id, kOtherId);
  EXPECT_EQ(find_step(store_, "step_1~2", {}).value().decision.id, kId);
  commit(about("step_3", 8, kOtherId), 15);
  EXPECT_EQ(names().back(), "step_3") << "in one second, by their tags";
}

TEST_F(CommitTest, VoidsAndTombstonesDoNotMoveNames) {
  decide_void(about("a", 5));
  commit(about("a", 10), 10);
  decide_void(about("a", 15));
  commit(about("a", 20), 20);
  bury(about("a", 10));
  const auto found = steps();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].decision, about("a", 10));
  EXPECT_EQ(found[0].ordinal, 1U);
  EXPECT_TRUE(found[0].gone);
  EXPECT_EQ(found[1].name(), "a~2");
  EXPECT_FALSE(found[1].gone);
  EXPECT_EQ(found[1].committed, std::chrono::system_clock::time_point(seconds(20)));
  EXPECT_EQ(find_step(store_, "a", {}).value().decision, about("a", 10));
  EXPECT_EQ(find_step(store_, "a~2", {}).value().decision, about("a", 20));
  for (const char* name : {"a~3", "a~1", "a~02", "a~", "b", "", "..", "a/b", "a~2~2", "a~99999999999999999999"}) {
    EXPECT_ERRNO(ENOENT, find_step(store_, name, {}));
  }
}

TEST_F(CommitTest, AListThatLacksWhatHasATombstoneIsAnError) {
  for (const uint64_t time : {1, 2, 3}) commit(about("a", time), 10);
  store_.hidden = step_key(about("a", 2));
  EXPECT_EQ(steps().size(), 2U) << "nothing tells that it is there";
  bury(about("a", 1));
  EXPECT_EQ(steps().size(), 2U);
  bury(about("a", 2));
  const auto listed = list_steps(store_, {});
  EXPECT_ERRNO(EIO, listed);
  EXPECT_NE(listed.error().message().find(store_.hidden), std::string::npos);
  EXPECT_ERRNO(EIO, find_step(store_, "a", {}));
  store_.hidden.clear();
  EXPECT_OK(list_steps(store_, {}));
}

TEST_F(CommitTest, AListThatFailsIsAnError) {
  commit(about("a", 1), 10);
  store_.fate = [](const std::string& operation, const std::string&) {
    return operation == "list" ? ListingStore::Fate::forbidden : ListingStore::Fate::done;
  };
  EXPECT_ERRNO(EACCES, list_steps(store_, {}));
  EXPECT_ERRNO(EACCES, look_up(store_, about("a", 1), {}));
}

TEST_F(CommitTest, OneDecisionIsLookedUp) {
  commit(about("a", 1), 10);
  decide_void(about("a", 2));
  put(step_key(about("a", 3)) + "/more", std::string(1000, 'x'), 0);
  commit(about("a", 3, kOtherId), 10);
  EXPECT_EQ(look_up(store_, about("a", 1), {}).value(), Decided::commit);
  EXPECT_EQ(look_up(store_, about("a", 2), {}).value(), Decided::voided);
  EXPECT_EQ(look_up(store_, about("a", 3), {}).value(), Decided::nothing);
  EXPECT_EQ(look_up(store_, about("b", 1), {}).value(), Decided::nothing);
}

TEST_F(CommitTest, ACommitIsFetchedByItsName) {
  commit(about("a", 1), 10);
  EXPECT_EQ(fetch_commit(store_, about("a", 1), {}).value().parts.size(), 1U);
  EXPECT_ERRNO(ENOENT, fetch_commit(store_, about("a", 2), {}));
  put(step_key(about("a", 2)), text_of(commit_of(about("a", 1))), 10);
  const auto another = fetch_commit(store_, about("a", 2), {});
  EXPECT_ERRNO(EBADMSG, another);
  EXPECT_NE(another.error().message().find(step_key(about("a", 2))), std::string::npos);
  decide_void(about("a", 3));
  EXPECT_ERRNO(EBADMSG, fetch_commit(store_, about("a", 3), {}));
}

}  // namespace
}  // namespace ckptfs::meta::remote
