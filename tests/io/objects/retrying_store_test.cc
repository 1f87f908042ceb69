#include "io/objects/retrying_store.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::MemoryStore;
using Fate = MemoryStore::Fate;
using namespace std::chrono_literals;

// Each try meets the next fate; after the last one all is done.
class RetryingStoreTest : public ::testing::Test {
 protected:
  RetryingStoreTest() {
    auto made = std::make_unique<MemoryStore>();
    memory_ = made.get();
    store_ = std::make_unique<RetryingStore>(std::move(made));
  }

  void come(std::vector<Fate> fates) {
    memory_->fate = [fates = std::move(fates), next = size_t{0}](auto&, auto&) mutable {
      return next < fates.size() ? fates[next++] : Fate::done;
    };
  }
  Result<> make(const std::string& key, std::string_view text) {
    return store_->put(key, content_of(text), PutMode::make, RequestLimits::within(5s));
  }
  Result<std::string> text_of(const std::string& key) {
    return get_text(*store_, key, 1000, RequestLimits::within(5s));
  }
  Result<std::vector<std::string>> keys(const std::string& prefix = {}) {
    std::vector<std::string> found;
    TRY(for_each_object(
        *store_, prefix,
        [&](const ObjectInfo& object) -> Result<> {
          found.push_back(object.key);
          return success();
        },
        RequestLimits::within(5s)));
    return found;
  }

  MemoryStore* memory_ = nullptr;
  std::unique_ptr<RetryingStore> store_;
};

TEST_F(RetryingStoreTest, WhatCanPassIsTriedAgain) {
  come({Fate::refused, Fate::refused});
  ASSERT_OK(make("a", "x"));
  EXPECT_EQ(memory_->counts().puts, 3U);
  EXPECT_EQ(memory_->counts().retries, 2U);
}

TEST_F(RetryingStoreTest, ALostReplyIsNoLostRace) {
  come({Fate::reply_lost});
  ASSERT_OK(make("a", "mine"));
  EXPECT_EQ(text_of("a").value(), "mine");
}

TEST_F(RetryingStoreTest, ALostRaceIsToldAfterALostReplyToo) {
  ASSERT_OK(make("a", "theirs"));
  come({Fate::refused});
  EXPECT_ERRNO(EEXIST, make("a", "mine!!"));
  come({Fate::refused});
  EXPECT_ERRNO(EEXIST, make("a", "theirs, and more"));
  come({Fate::refused});
  EXPECT_ERRNO(EEXIST, make("a", "their"));
  EXPECT_EQ(text_of("a").value(), "theirs");
}

TEST_F(RetryingStoreTest, OneThatIsThereAtTheFirstTryIsNotCompared) {
  ASSERT_OK(make("a", "same"));
  EXPECT_ERRNO(EEXIST, make("a", "same"));
}

TEST_F(RetryingStoreTest, ThatThereIsNoneIsAskedAgain) {
  ASSERT_OK(make("a", "x"));
  come({Fate::missing, Fate::missing});
  EXPECT_EQ(text_of("a").value(), "x");
  const auto none = get_text(*store_, "b", 10, RequestLimits::within(300ms));
  EXPECT_ERRNO(ENOENT, none);
  EXPECT_NE(none.error().message().find("tried"), std::string::npos) << none.error().message();
}

TEST_F(RetryingStoreTest, RefusedCredentialsAreFinalUntilTheyHaveServed) {
  come({Fate::forbidden});
  EXPECT_ERRNO(EACCES, make("a", "x"));
  EXPECT_EQ(memory_->counts().puts, 1U);
  ASSERT_OK(make("a", "x"));
  come({Fate::forbidden});
  EXPECT_EQ(text_of("a").value(), "x");
}

TEST_F(RetryingStoreTest, APageThatFailsIsAskedForAgain) {
  const std::vector<std::string> wanted{"p/1", "p/2", "p/3", "p/4", "p/5"};
  for (const std::string& key : wanted) ASSERT_OK(make(key, "x"));
  ASSERT_OK(make("q", "x"));
  come({Fate::refused, Fate::done, Fate::reply_lost, Fate::done, Fate::refused});
  EXPECT_EQ(keys("p/").value(), wanted);
}

TEST_F(RetryingStoreTest, AVisitorsErrorIsNotTriedAgain) {
  ASSERT_OK(make("a", "x"));
  const auto busy = [](const ObjectInfo&) -> Result<> { return Error(EAGAIN); };
  EXPECT_ERRNO(EAGAIN, for_each_object(*store_, "", busy, RequestLimits::within(5s)));
  EXPECT_EQ(memory_->counts().lists, 1U);
}

TEST_F(RetryingStoreTest, AnErrorOfTheContentIsNotTriedAgain) {
  int reads = 0;
  const ObjectContent broken{1, [&](uint64_t, std::span<std::byte>) -> Result<> {
                               ++reads;
                               return Error(EIO, "a bad sector");
                             }};
  const auto put = store_->put("a", broken, PutMode::make, RequestLimits::within(5s));
  EXPECT_ERRNO(EIO, put);
  EXPECT_EQ(put.error().message(), "a bad sector");
  EXPECT_EQ(reads, 1);
}

TEST_F(RetryingStoreTest, ItEndsWhenItIsStopped) {
  memory_->fate = [](auto&, auto&) { return Fate::refused; };
  std::atomic<bool> stop{false};
  std::thread stopper([&] {
    std::this_thread::sleep_for(100ms);
    stop = true;
  });
  EXPECT_ERRNO(ECANCELED, store_->remove("a", RequestLimits::within(1h, &stop)));
  stopper.join();
}

}  // namespace
}  // namespace ckptfs::io
