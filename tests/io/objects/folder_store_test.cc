#include "io/objects/folder_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

using testing::ScratchFolder;

class FolderStoreTest : public ::testing::Test {
 protected:
  Result<> make(const std::string& key, std::string_view text, PutMode mode = PutMode::make) {
    return store_->put(key, content_of(text), mode, {});
  }
  Result<std::string> text_of(const std::string& key) { return get_text(*store_, key, 1 << 20, {}); }
  std::vector<std::string> keys(const std::string& prefix) {
    std::vector<std::string> found;
    EXPECT_OK(for_each_object(*store_, prefix,
                              [&](const ObjectInfo& object) -> Result<> {
                                found.push_back(object.key);
                                return success();
                              },
                              {}));
    return found;
  }

  const ScratchFolder folder_;
  const std::unique_ptr<ObjectStore> store_ = FolderStore::open(folder_.path()).value();
};

TEST_F(FolderStoreTest, PutsAndGets) {
  const std::string long_text(3'000'000, 'x');
  ASSERT_OK(make("a/b", "hello"));
  ASSERT_OK(make("a/empty", ""));
  ASSERT_OK(store_->put("long", content_of(std::string_view(long_text)), PutMode::make, {}));
  EXPECT_EQ(text_of("a/b").value(), "hello");
  EXPECT_EQ(text_of("a/empty").value(), "");
  EXPECT_ERRNO(EFBIG, get_text(*store_, "long", 2'999'999, {}));
  EXPECT_EQ(get_text(*store_, "long", 3'000'000, {}).value(), long_text);
  std::string piece(3, '\0');
  EXPECT_EQ(store_->get("a/b", 1, std::as_writable_bytes(std::span(piece)), {}).value(), 3U);
  EXPECT_EQ(piece, "ell");
  EXPECT_EQ(store_->get("a/b", 4, std::as_writable_bytes(std::span(piece)), {}).value(), 1U);
  EXPECT_EQ(store_->get("a/b", 9, std::as_writable_bytes(std::span(piece)), {}).value(), 0U);
  EXPECT_ERRNO(ENOENT, text_of("a/c"));
}

TEST_F(FolderStoreTest, MakesOnce) {
  ASSERT_OK(make("a", "first"));
  EXPECT_ERRNO(EEXIST, make("a", "second"));
  EXPECT_EQ(text_of("a").value(), "first");
  ASSERT_OK(make("a", "third", PutMode::replace));
  EXPECT_EQ(text_of("a").value(), "third");
}

TEST_F(FolderStoreTest, OneOfManyMakes) {
  std::atomic<int> made{0};
  {
    std::vector<std::jthread> threads;
    for (int number = 0; number < 8; ++number) {
      threads.emplace_back([&, number] { made += make("race/a", std::to_string(number)).has_value() ? 1 : 0; });
    }
  }
  EXPECT_EQ(made, 1);
}

TEST_F(FolderStoreTest, ListsFoldersWithinFolders) {
  for (const char* key : {"b", "a/b/x", "a/b-/x", "a-c"}) ASSERT_OK(make(key, "x"));
  EXPECT_EQ(keys(""), (std::vector<std::string>{"a-c", "a/b-/x", "a/b/x", "b"}));
  EXPECT_EQ(keys("a/"), (std::vector<std::string>{"a/b-/x", "a/b/x"}));
  EXPECT_EQ(keys("none/"), std::vector<std::string>{});
}

TEST_F(FolderStoreTest, APageGoesOnWhereTheOneBeforeEnded) {
  std::vector<std::string> wanted;
  for (int number = 0; number < 2'100; ++number) {
    wanted.push_back(std::to_string(number % 3) + (number % 2 == 0 ? "/f" : "-") + std::to_string(number));
    std::filesystem::create_directories(std::filesystem::path(folder_.path(wanted.back())).parent_path());
    std::ofstream(folder_.path(wanted.back())) << "x";
  }
  std::ranges::sort(wanted);
  EXPECT_EQ(keys(""), wanted);
  EXPECT_EQ(store_->list("", "", {}).value().objects.size(), 1000U);
}

TEST_F(FolderStoreTest, EachPageOfAListHasItsTime) {
  for (int number = 0; number < 1'100; ++number) std::ofstream(folder_.path(std::to_string(number))) << "x";
  constexpr std::chrono::seconds kTime{2};
  size_t seen = 0;
  const auto slow = [&](const ObjectInfo&) -> Result<> {
    if (seen++ == 0) std::this_thread::sleep_for(kTime + std::chrono::milliseconds(100));
    return success();
  };
  ASSERT_OK(for_each_object(*store_, "", slow, RequestLimits::within(kTime)));
  EXPECT_EQ(seen, 1'100U);
}

TEST_F(FolderStoreTest, AFolderThatIsNotThereIsNeitherMadeNorEmpty) {
  const auto gone = FolderStore::open(folder_.path("not/mounted")).value();
  EXPECT_ERRNO(ESTALE, gone->list("", "", {}));
  EXPECT_ERRNO(ESTALE, gone->put("a/b", content_of("x"), PutMode::make, {}));
  EXPECT_ERRNO(ESTALE, get_text(*gone, "a/b", 10, {}));
  EXPECT_ERRNO(ESTALE, gone->remove("a/b", {}));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("not")));
}

TEST_F(FolderStoreTest, FoldersThatAreRemovedMeanwhileAreMadeAgain) {
  ASSERT_OK(make("a/b/c", "x"));
  std::filesystem::remove_all(folder_.path("a"));
  EXPECT_ERRNO(ENOENT, make("a/b/d", "x"));  // which can pass
  ASSERT_OK(make("a/b/d", "x"));
}

TEST_F(FolderStoreTest, AFolderIsMadeBelowOneThatWasRemovedMeanwhile) {
  ASSERT_OK(make("a/x", "x"));
  std::filesystem::remove_all(folder_.path("a"));
  EXPECT_ERRNO(ENOENT, make("a/b/c", "x"));  // which can pass
  ASSERT_OK(make("a/b/c", "x"));
}

TEST_F(FolderStoreTest, HiddenNamesAreOfTheFolderAtItsTopOnly) {
  for (const char* key : {"a/.metadata", ".ckptfs/parts/x", "a/.hidden/b"}) ASSERT_OK(make(key, "x"));
  for (const char* const name : {".snapshot/old", ".ckptfs-uploads/1"}) {
    std::filesystem::create_directories(std::filesystem::path(folder_.path(name)).parent_path());
    std::ofstream(folder_.path(name)) << "x";
  }
  EXPECT_EQ(keys(""), (std::vector<std::string>{".ckptfs/parts/x", "a/.hidden/b", "a/.metadata"}));
  EXPECT_ERRNO(EINVAL, make(".snapshot/new", "x"));
}

TEST_F(FolderStoreTest, EndsWhatWritersHaveLeft) {
  constexpr std::chrono::hours kWeek{7 * 24};
  const Upload upload = store_->begin_upload("a/b", {}).value();
  std::ofstream(folder_.path(".ckptfs-uploads/of_a_killed_writer")) << "x";
  EXPECT_EQ(store_->end_uploads(kWeek, {}).value(), 0U) << "all of it is young";
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(8 * 24);
  for (const auto& one : std::filesystem::directory_iterator(folder_.path(".ckptfs-uploads"))) {
    std::filesystem::last_write_time(one.path(), old);
  }
  EXPECT_EQ(store_->end_uploads(kWeek, {}).value(), 2U);
  EXPECT_ERRNO(ENOENT, store_->put_piece(upload, 1, 0, content_of("x"), {}));
  EXPECT_ERRNO(ENOENT, store_->complete_upload(upload, 1, {""}, {}));
  EXPECT_ERRNO(ESTALE, FolderStore::open(folder_.path("none")).value()->end_uploads(kWeek, {}));
}

TEST_F(FolderStoreTest, AnUploadAppearsWhenItIsComplete) {
  const Upload upload = store_->begin_upload("a/b", {}).value();
  const std::string world = store_->put_piece(upload, 2, 5, content_of("world"), {}).value();
  EXPECT_EQ(keys(""), std::vector<std::string>{});
  EXPECT_ERRNO(ENOENT, store_->complete_upload(upload, 11, {"", world}, {})) << "it lacks a byte";
  const std::string hello = store_->put_piece(upload, 1, 0, content_of("hello"), {}).value();
  Upload known = upload;
  known.is_known = true;
  for (const auto& pieces :
       {std::vector{world, hello}, std::vector{hello, hello}, std::vector<std::string>{"", world}}) {
    EXPECT_ERRNO(ENOENT, store_->complete_upload(known, 10, pieces, {})) << "it does not hold what was put";
  }
  std::fstream(folder_.path(".ckptfs-uploads/" + upload.id), std::ios::in | std::ios::out) << "HE";
  EXPECT_ERRNO(ENOENT, store_->complete_upload(known, 10, {hello, world}, {})) << "the folder was restored, say";
  ASSERT_OK(store_->put_piece(upload, 1, 0, content_of("hello"), {}));
  ASSERT_OK(store_->complete_upload(known, 10, {hello, world}, {}));
  EXPECT_EQ(text_of("a/b").value(), "helloworld");
  ASSERT_OK(store_->complete_upload(upload, 10, {"", ""}, {})) << "it was completed before";
  EXPECT_ERRNO(ENOENT, store_->complete_upload(upload, 9, {""}, {}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path(".ckptfs-uploads")));
}

TEST_F(FolderStoreTest, CopiesAsAWhole) {
  const std::string text(3'000'000, 'x');
  ASSERT_OK(make("a/b", text));
  ASSERT_OK(store_->copy("a/b", "c/d/e", text.size(), {}));
  ASSERT_OK(make("f", "old"));
  ASSERT_OK(store_->copy("a/b", "f", text.size(), {}));
  for (const char* key : {"c/d/e", "f"}) EXPECT_EQ(get_text(*store_, key, text.size(), {}).value(), text);
  EXPECT_ERRNO(ENOENT, store_->copy("a/none", "g", 1, {}));
  EXPECT_ERRNO(ENOENT, store_->copy("a/b", "g", text.size() + 1, {})) << "of another size";
  EXPECT_EQ(keys("g/"), std::vector<std::string>{});
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path(".ckptfs-uploads")));
}

TEST_F(FolderStoreTest, RemovesEmptyFoldersOfAPrefix) {
  for (const char* const name : {"one/a/b", "one/c", "mine/empty"}) {
    std::filesystem::create_directories(folder_.path(name));
  }
  ASSERT_OK(make("two/full", "x"));
  std::filesystem::create_directories(folder_.path("two/empty"));
  const std::chrono::seconds now{0}, day{86'400};
  EXPECT_EQ(store_->remove_empty_folders("one/", day, {}).value(), 0U) << "they are young";
  EXPECT_EQ(store_->remove_empty_folders("one/", now, {}).value(), 4U);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("one")));
  EXPECT_EQ(store_->remove_empty_folders("two/", now, {}).value(), 1U);
  EXPECT_EQ(text_of("two/full").value(), "x");
  EXPECT_TRUE(std::filesystem::exists(folder_.path("mine/empty")));
  EXPECT_EQ(store_->remove_empty_folders("none/", now, {}).value(), 0U);
  ASSERT_OK(make("one/a/x", "x"));
}

TEST_F(FolderStoreTest, RemovesAndLeavesNothingBehind) {
  ASSERT_OK(make("a", "x"));
  EXPECT_ERRNO(EEXIST, make("a", "y"));
  ASSERT_OK(store_->remove("a", {}));
  ASSERT_OK(store_->remove("a", {}));
  EXPECT_EQ(keys(""), std::vector<std::string>{});
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path(".ckptfs-uploads")));
}

TEST_F(FolderStoreTest, ContentThatCannotBeReadMakesNoObject) {
  const ObjectContent broken{5, [](uint64_t, std::span<std::byte>) -> Result<> { return Error(EBADF, "broken"); }};
  EXPECT_ERRNO(EBADF, store_->put("a", broken, PutMode::make, {}));
  EXPECT_ERRNO(ENOENT, text_of("a"));
}

TEST_F(FolderStoreTest, WhatIsNeitherFileNorFolderIsNoObject) {
  ASSERT_OK(make("a/b", "x"));
  ASSERT_EQ(::symlink("/etc", folder_.path("link").c_str()), 0);
  ASSERT_EQ(::symlink("/etc/passwd", folder_.path("a/link").c_str()), 0);
  ASSERT_EQ(::mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(keys(""), std::vector<std::string>{"a/b"});
  EXPECT_ERRNO(ELOOP, text_of("a/link"));
  EXPECT_ERRNO(EPROTO, text_of("pipe"));
  EXPECT_ERRNO(EPROTO, store_->list("link/", "", {})) << "it is not followed";
  EXPECT_ERRNO(EPROTO, store_->remove_empty_folders("link/", std::chrono::seconds(0), {}));
}

TEST_F(FolderStoreTest, AKeyThatIsTooLongIsRefusedBeforehand) {
  EXPECT_OK(store_->check_fits(std::string(4094 - folder_.path().size(), 'a')));
  EXPECT_ERRNO(EINVAL, store_->check_fits(std::string(4095 - folder_.path().size(), 'a')));
}

}  // namespace
}  // namespace ckptfs::io
