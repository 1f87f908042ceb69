// Shared by the tests of io/: assertions on Result, scratch folders, and one XFS image for the whole binary. The
// folders are made in TMPDIR, else in /dev/shm.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/fd.h"
#include "io/image.h"
#include "io/result.h"

// Asserts that the Result holds a value, and else prints its error.
#define ASSERT_OK(...) ASSERT_TRUE(::ckptfs::io::testing::ok((__VA_ARGS__)))
#define EXPECT_OK(...) EXPECT_TRUE(::ckptfs::io::testing::ok((__VA_ARGS__)))
// Asserts that the Result holds an Error with this errno.
#define EXPECT_ERRNO(expected, ...) EXPECT_TRUE(::ckptfs::io::testing::fails((__VA_ARGS__), expected))

namespace ckptfs::io::testing {

template <class T>
::testing::AssertionResult ok(const Result<T>& result) {
  if (result) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "errno " << result.error().errno_value() << ": " << result.error().message();
}

template <class T>
::testing::AssertionResult fails(const Result<T>& result, int expected) {
  if (result) return ::testing::AssertionFailure() << "it succeeded";
  if (result.error().errno_value() == expected) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "errno " << result.error().errno_value() << ": " << result.error().message();
}

// A new folder, which is removed with its content.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent = default_parent());
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();

  static std::filesystem::path default_parent();
  std::string path(const std::string& name = {}) const { return name.empty() ? path_ : path_ + "/" + name; }

 private:
  std::string path_;
};

// Returns why no image can be mounted on this machine, or nothing if one can.
std::optional<std::string> no_images_reason();

// A test with its own folder on the XFS image that all such tests of this binary share. Where no image can be mounted,
// the test is skipped with the reason.
class XfsTest : public ::testing::Test {
 protected:
  void SetUp() override;
  std::string path(const std::string& name = {}) const { return folder_->path(name); }
  // Makes a new file with this content, and opens it.
  Fd file(const std::string& name, std::span<const std::byte> content = {}) const;
  static const MountedImage& image();

 private:
  std::optional<ScratchFolder> folder_;
};

// Returns bytes that differ from block to block and from seed to seed.
std::vector<std::byte> pattern(size_t size, unsigned seed);
std::vector<std::byte> content_of_file(int fd);

}  // namespace ckptfs::io::testing
