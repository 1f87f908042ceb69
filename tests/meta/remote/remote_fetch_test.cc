#include "meta/remote/remote_fetch.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "io/fault.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote {
namespace {

using io::testing::MemoryStore;
using io::testing::ScratchFolder;
using testing::BuiltPart, testing::bytes_for, testing::new_push, testing::new_save, testing::put_step;

std::string text_in(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// A step with a large file, "sub/b", of a bit more than 20 chunks.
class RemoteFetchTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kLarge = 20 * kChunkBytes + 1234;

  RemoteFetchTest() { std::filesystem::create_directory(to_); }

  RemoteStep open(const std::vector<BuiltPart>& parts) {
    return RemoteStep::open(store_, put_step(store_, new_save("global_step5"), parts, folder_.path()).value(),
                            folder_.path(), {})
        .value();
  }
  RemoteStep open() {
    return open({BuiltPart().file("a", "first").file("sub/b", large_).file("empty", "").link("sub/link", "../a")});
  }
  Result<FetchReport> fetch(const RemoteStep& step, const std::vector<std::string>& lenders = {}) const {
    return fetch_step(step, std::nullopt, to_, lenders, settings_);
  }
  Result<std::string> difference(const RemoteStep& step) const {
    return find_difference(step, std::nullopt, to_, settings_);
  }

  const ScratchFolder folder_;
  MemoryStore store_;
  const std::string large_ = bytes_for(kLarge, 5);
  const std::string to_ = folder_.path("to");
  ReadSettings settings_;
};

TEST_F(RemoteFetchTest, FetchesAll) {
  const RemoteStep step = open();
  const FetchReport report = fetch(step).value();
  EXPECT_EQ(report.fetched, kLarge + 5);
  EXPECT_EQ(report.shared + report.found, 0U);
  EXPECT_EQ(text_in(to_ + "/a"), "first");
  EXPECT_EQ(text_in(to_ + "/sub/b"), large_);
  EXPECT_EQ(text_in(to_ + "/empty"), "");
  EXPECT_EQ(std::filesystem::read_symlink(to_ + "/sub/link"), "../a");
  EXPECT_EQ(difference(step).value(), "");
}

TEST_F(RemoteFetchTest, TellsWhatWasSaved) {
  const RemoteStep step = open({BuiltPart().file("a", "first").file("b", large_).file("eval_results.json", "{}")});
  const FetchReport report = fetch(step).value();
  EXPECT_EQ(report.saved, step.part(0).header().saved);
  const auto without_note =
      testing::build_part(new_push("step", 0), BuiltPart().file("a", "first").file("b", large_), folder_.path());
  EXPECT_EQ(report.saved, without_note.value().header().saved);
  struct stat found {};
  ASSERT_EQ(::lstat(to_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700U) << "until it is published";
  EXPECT_EQ(report.own_folder.mode, 0755U);
}

TEST_F(RemoteFetchTest, OfAllSlotsItTellsWhatIsInTheUnion) {
  BuiltPart one, other, both;
  one.file("a", "first").file("shared", "x");
  other.file("b", large_).file("shared", "x");
  both.file("a", "first").file("b", large_).file("shared", "x");
  const FetchReport report = fetch(open({one, other})).value();
  EXPECT_EQ(report.saved, testing::build_part(new_push("step", 0), both, folder_.path()).value().header().saved);
}

TEST_F(RemoteFetchTest, GoesOnWhereItWasInterrupted) {
  const RemoteStep step = open();
  std::atomic<bool> stop{false};
  ReadSettings settings;
  settings.parallel = 1;
  settings.stop = &stop;
  settings.progress = [&](const ReadProgress& progress) { stop = progress.done > 10 * kChunkBytes; };
  EXPECT_ERRNO(ECANCELED, fetch_step(step, std::nullopt, to_, {}, settings));
  const FetchReport report = fetch(step).value();
  EXPECT_EQ(report.found, 16 * kChunkBytes + 5);
  EXPECT_EQ(report.fetched, kLarge - 16 * kChunkBytes);
  EXPECT_EQ(difference(step).value(), "");
  EXPECT_EQ(fetch(step).value().fetched, 0U);  // killed after it had written all
}

TEST_F(RemoteFetchTest, WhatIsWrongIsFetchedAgain) {
  const RemoteStep step = open();
  ASSERT_OK(fetch(step));
  std::fstream(to_ + "/sub/b", std::ios::in | std::ios::out | std::ios::binary).seekp(3 * kChunkBytes + 7) << "??";
  std::filesystem::resize_file(to_ + "/a", 3);
  std::filesystem::permissions(to_ + "/sub", std::filesystem::perms::owner_read);
  EXPECT_EQ(difference(step).value(), "a");
  const FetchReport report = fetch(step).value();
  EXPECT_EQ(report.fetched, kChunkBytes + 5);
  EXPECT_EQ(report.found, kLarge - kChunkBytes);
  EXPECT_EQ(difference(step).value(), "");
}

TEST_F(RemoteFetchTest, TakesWhatOtherStepsHave) {
  const RemoteStep step = open();
  std::string other = large_;
  other[2 * kChunkBytes] ^= 1;
  write_text(folder_.path("one/sub/b"), other);
  write_text(folder_.path("two/sub/b"), large_.substr(0, 3 * kChunkBytes) + "longer");
  write_text(folder_.path("two/a/folder"), "");
  std::filesystem::create_symlink("/dev/zero", folder_.path("one/a"));
  const FetchReport report = fetch(step, {folder_.path("one"), folder_.path("two"), folder_.path("none")}).value();
  EXPECT_EQ(report.shared, kLarge);
  EXPECT_EQ(report.fetched, 5U);
  EXPECT_EQ(difference(step).value(), "");
}

TEST_F(RemoteFetchTest, NobodysLinksAreFollowed) {
  const RemoteStep step = open();
  std::filesystem::create_directory(folder_.path("elsewhere"));
  std::filesystem::create_symlink(folder_.path("elsewhere"), to_ + "/sub");
  EXPECT_ERRNO(ENOTDIR, fetch(step));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path("elsewhere")));
  std::filesystem::remove(to_ + "/sub");
  write_text(folder_.path("mine"), "first");
  std::filesystem::remove(to_ + "/a");
  std::filesystem::create_symlink(folder_.path("mine"), to_ + "/a");
  write_text(folder_.path("large"), std::string(kLarge, 'x'));
  std::filesystem::create_directory(to_ + "/sub");
  std::filesystem::create_hard_link(folder_.path("large"), to_ + "/sub/b");
  ASSERT_OK(fetch(step));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(to_ + "/a")));
  EXPECT_EQ(text_in(folder_.path("large")), std::string(kLarge, 'x'));
  EXPECT_EQ(difference(step).value(), "");
}

TEST_F(RemoteFetchTest, WhatIsNotOfTheStepIsRefused) {
  const RemoteStep step = open();
  write_text(to_ + "/sub/other", "x");
  const auto refused = fetch(step);
  EXPECT_ERRNO(EEXIST, refused);
  EXPECT_NE(refused.error().message().find("sub/other"), std::string::npos);
  EXPECT_EQ(difference(step).value(), "sub/other");
}

TEST_F(RemoteFetchTest, FindsWhatDiffers) {
  const RemoteStep step = open();
  EXPECT_EQ(difference(step).value(), "a");
  ASSERT_OK(fetch(step));
  EXPECT_EQ(difference(step).value(), "");
  std::fstream(to_ + "/sub/b", std::ios::in | std::ios::out | std::ios::binary).seekp(kLarge - 1) << "?";
  EXPECT_EQ(difference(step).value(), "sub/b");
  ASSERT_OK(fetch(step));
  std::filesystem::remove(to_ + "/sub/link");
  std::filesystem::create_symlink("../b", to_ + "/sub/link");
  EXPECT_EQ(difference(step).value(), "sub/link");
}

TEST_F(RemoteFetchTest, OneSlotAlone) {
  const RemoteStep step = open({BuiltPart().file("a", "first"), BuiltPart().file("b", "second")});
  const FetchReport report = fetch_step(step, 1, to_, {}, settings_).value();
  EXPECT_EQ(report.fetched, 6U);
  EXPECT_EQ(report.saved, step.part(1).header().saved);
  EXPECT_FALSE(std::filesystem::exists(to_ + "/a"));
  EXPECT_EQ(text_in(to_ + "/b"), "second");
  EXPECT_EQ(find_difference(step, 1, to_, settings_).value(), "");
  EXPECT_EQ(find_difference(step, 0, to_, settings_).value(), "b");
  EXPECT_ERRNO(EINVAL, fetch_step(step, 2, to_, {}, settings_));
}

TEST_F(RemoteFetchTest, DamageIsNamedAndWhatCameStays) {
  const RemoteStep step = open();
  const std::string key = file_key(step.commit().parts[0].push, 1, "sub/b");
  ASSERT_OK(store_.put(key, io::content_of(std::string_view("damaged")), io::PutMode::replace, {}));
  const auto wrong = fetch(step);
  EXPECT_ERRNO(EBADMSG, wrong);
  EXPECT_NE(wrong.error().message().find(key), std::string::npos) << wrong.error().message();
  EXPECT_EQ(text_in(to_ + "/a"), "first");
}

}  // namespace
}  // namespace ckptfs::meta::remote
