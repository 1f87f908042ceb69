// What the tests of io/ share: assertions on Result, scratch folders, and one XFS image for the whole binary. A folder
// for them is TMPDIR, else /dev/shm.
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

// The Result holds a value; its error's words otherwise.
#define ASSERT_OK(...) ASSERT_TRUE(::ckptfs::io::testing::ok((__VA_ARGS__)))
#define EXPECT_OK(...) EXPECT_TRUE(::ckptfs::io::testing::ok((__VA_ARGS__)))
// The Result holds an Error with this errno.
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

// A new folder, removed with all that is in it.
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

// Why no image can be mounted on this machine; nothing where one can.
std::optional<std::string> no_images_reason();

// A test with a folder of its own on the XFS image that all such tests of this binary share; skipped, with its reason,
// where there can be none.
class XfsTest : public ::testing::Test {
 protected:
  void SetUp() override;
  std::string path(const std::string& name = {}) const { return folder_->path(name); }
  // An open new file with this content.
  Fd file(const std::string& name, std::span<const std::byte> content = {}) const;
  static const MountedImage& image();

 private:
  std::optional<ScratchFolder> folder_;
};

// Bytes that differ from block to block and from seed to seed.
std::vector<std::byte> pattern(size_t size, unsigned seed);
std::vector<std::byte> content_of(int fd);

}  // namespace ckptfs::io::testing
