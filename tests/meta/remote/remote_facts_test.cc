#include "meta/remote/remote_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "meta/remote/commit.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/layout.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"

namespace ckptfs::meta::remote {
namespace {

// A store that is not what the format needs, in one way.
class OddStore : public io::testing::MemoryStore {
 public:
  enum class Way { none, replaces, replaces_and_denies, ignores_ranges, lists_late };
  explicit OddStore(Way way) : way_(way) {}

  Result<> put(const std::string& key, const io::ObjectContent& content, io::PutMode mode,
               const io::RequestLimits& limits) override {
    if (way_ == Way::replaces) return MemoryStore::put(key, content, io::PutMode::replace, limits);
    auto done = MemoryStore::put(key, content, mode, limits);
    if (!done && way_ == Way::replaces_and_denies) TRY(MemoryStore::put(key, content, io::PutMode::replace, limits));
    return done;
  }
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const io::RequestLimits& limits) override {
    return MemoryStore::get(key, way_ == Way::ignores_ranges ? 0 : offset, buffer, limits);
  }
  Result<io::ObjectPage> list(const std::string& prefix, const std::string& token,
                              const io::RequestLimits& limits) override {
    if (way_ == Way::lists_late) return io::ObjectPage{};
    return MemoryStore::list(prefix, token, limits);
  }

 private:
  const Way way_;
};

bool is_empty(io::ObjectStore& store) { return store.list("", "", {}).value().objects.empty(); }

TEST(RemoteFacts, AreMadeOnce) {
  io::testing::MemoryStore store;
  EXPECT_ERRNO(ENOENT, read_facts(store, {}));
  const RemoteFacts made = found_remote(store, 2, "node0", {}).value();
  EXPECT_EQ(made.id.size(), 16U);
  EXPECT_EQ(made.slots, 2U);
  EXPECT_EQ(made.made.size(), 20U);
  EXPECT_EQ(found_remote(store, 2, "node1", {}).value().host, "node0");
  const RemoteFacts read = read_facts(store, {}).value();
  EXPECT_EQ(read.id, made.id);
  EXPECT_EQ(read.made, made.made);
  const auto other = found_remote(store, 3, "node1", {});
  EXPECT_ERRNO(EEXIST, other);
  EXPECT_NE(other.error().message().find("node0 made it for 2 slots, and node1 says 3"), std::string::npos);
  EXPECT_ERRNO(EINVAL, found_remote(store, 0, "node1", {}));
}

TEST(RemoteFacts, AreFoundAmongOtherObjects) {
  io::testing::MemoryStore store;
  for (const char* key : {"a", "b", "c", "d/e", "z"})
    ASSERT_OK(store.put(key, io::content_of("x"), io::PutMode::make, {}));
  EXPECT_ERRNO(ENOENT, read_facts(store, {}));
  EXPECT_EQ(store.counts().gets, 0U);
  ASSERT_OK(found_remote(store, 1, "node0", {}));
  EXPECT_OK(read_facts(store, {}));
}

TEST(RemoteFacts, OfAnotherVersionOrNoneAreRefused) {
  const auto facts_of = [](uint64_t slots) {
    return checked_line(
        {{"ckptfs", "remote"}, {"version", 2}, {"id", "x"}, {"slots", slots}, {"host", "h"}, {"made", "m"}});
  };
  const auto put_facts = [](io::ObjectStore& store, const std::string& text) {
    return store.put(kFactsKey, io::content_of(std::string_view(text)), io::PutMode::make, {});
  };
  io::testing::MemoryStore right;
  ASSERT_OK(put_facts(right, facts_of(3)));
  EXPECT_EQ(read_facts(right, {}).value().slots, 3U);
  std::string edited = facts_of(3);
  edited.replace(edited.find("\"slots\":3"), 9, "\"slots\":2");
  // What lies there, and what is said of it.
  const std::vector<std::pair<std::string, std::string>> wrong{
      {R"({"ckptfs":"remote","version":3,"slots":1})", "it is of version 3"},
      {"hello", "ckptfs did not make it"},
      {void_text(), "it is \"void\", and should be \"remote\""},
      {facts_of(0), "its number of slots is 0"},
      {facts_of(kMostSlots + 1), "more than there can be"},
      {checked_line({{"ckptfs", "remote"}, {"version", 2}, {"slots", 1}, {"host", "h"}, {"made", "m"}}),
       "it has no text \"id\""},
      {edited, "it was damaged"}};
  for (const auto& [text, words] : wrong) {
    io::testing::MemoryStore store;
    ASSERT_OK(put_facts(store, text));
    for (const auto& refused : {read_facts(store, {}), found_remote(store, 1, "node0", {})}) {
      EXPECT_ERRNO(EPROTO, refused);
      EXPECT_NE(refused.error().message().find(words), std::string::npos) << refused.error().message();
    }
  }
}

TEST(RemoteFacts, TheFirstFormatIsRefusedByName) {
  io::testing::MemoryStore store;
  ASSERT_OK(store.put("parts/of/mine", io::content_of("x"), io::PutMode::make, {}));
  EXPECT_ERRNO(ENOENT, read_facts(store, {}));
  ASSERT_OK(store.put("parts/step_1/0.0123456789abcdef", io::content_of("x"), io::PutMode::make, {}));
  for (const auto& refused : {read_facts(store, {}), found_remote(store, 1, "node0", {})}) {
    EXPECT_ERRNO(EPROTO, refused);
    EXPECT_NE(refused.error().message().find("of version 1 of the format"), std::string::npos);
  }
}

TEST(RemoteFacts, AStoreThatKeepsWhatTheFormatNeedsIsAccepted) {
  OddStore store(OddStore::Way::none);
  EXPECT_OK(probe_store(store, {}));
  EXPECT_TRUE(is_empty(store));
}

TEST(RemoteFacts, AStoreThatDoesNotIsRefused) {
  using Way = OddStore::Way;
  for (const Way way : {Way::replaces, Way::replaces_and_denies, Way::ignores_ranges, Way::lists_late}) {
    OddStore store(way);
    EXPECT_ERRNO(EPROTO, probe_store(store, {}));
    EXPECT_TRUE(is_empty(store));
  }
}

TEST(RemoteFacts, AProbeThatCannotBeMadeIsAnError) {
  io::testing::MemoryStore store;
  for (const char* operation : {"put", "get", "list", "remove"}) {
    store.fate = [&](const std::string& asked, const std::string&) {
      return asked == operation ? io::testing::MemoryStore::Fate::forbidden : io::testing::MemoryStore::Fate::done;
    };
    EXPECT_ERRNO(EACCES, probe_store(store, {}));
  }
}

}  // namespace
}  // namespace ckptfs::meta::remote
