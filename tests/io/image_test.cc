#include "io/image.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>

#include "io/aligned_buffer.h"
#include "io/image_file.h"
#include "io/loop_device.h"
#include "io/mount_table.h"
#include "io/process.h"
#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

namespace stdfs = std::filesystem;
using testing::no_images_reason;
using testing::ScratchFolder;

// A store folder. If a test leaves its image mounted, TearDown unmounts it.
class ImageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = no_images_reason()) GTEST_SKIP() << *reason;
  }
  void TearDown() override {
    ::umount2(store("fs").c_str(), UMOUNT_NOFOLLOW);
    if (!has_image(store())) return;
    const auto loops = loops_of(store(kImageName));
    ASSERT_OK(loops);
    for (const LoopDevice& loop : loops.value()) EXPECT_OK(detach_loop(loop.device));
  }
  std::string store(const std::string& name = {}) const {
    return folder_.path(name.empty() ? "store" : "store/" + name);
  }
  std::string outside(const std::string& name) const { return folder_.path(name); }

  static ImageOptions sparse(uint64_t size = kMinimumImageSize) { return {.size = size, .sparse = true}; }
  size_t loop_count() const {
    const auto loops = loops_of(store(kImageName));
    EXPECT_OK(loops);
    return loops ? loops.value().size() : 0;
  }

 private:
  ScratchFolder folder_;
};

TEST_F(ImageTest, IsXfsWithReflinkAndTakenDownWhole) {
  EXPECT_FALSE(has_image(store()));
  const auto image = mount_image(store(), sparse());
  ASSERT_OK(image);
  EXPECT_TRUE(has_image(store()));
  EXPECT_EQ(image.value().image, store("image.xfs"));
  EXPECT_EQ(image.value().folder, store("fs"));
  const auto info = run_checked({"xfs_info", store("fs")});
  ASSERT_OK(info);
  EXPECT_NE(info.value().find("reflink=1"), std::string::npos) << info.value();
  const auto options = read_file("/proc/self/mounts");
  ASSERT_OK(options);
  const size_t line = options.value().find(image.value().device + " " + store("fs"));
  ASSERT_NE(line, std::string::npos);
  EXPECT_NE(options.value().substr(line).find("noatime"), std::string::npos);

  ASSERT_OK(unmount_image(image.value()));
  EXPECT_EQ(loop_count(), 0u);
  EXPECT_TRUE(stdfs::is_empty(store("fs")));
  EXPECT_OK(unmount_image(image.value())) << "taking down what is down";
}

TEST_F(ImageTest, SurvivesReattach) {
  const auto first = mount_image(store(), sparse());
  ASSERT_OK(first);
  ASSERT_OK(replace_file(store("fs/file"), "content"));
  ASSERT_OK(unmount_image(first.value()));

  const auto found = find_image(store());
  ASSERT_OK(found);
  EXPECT_EQ(read_file(store("fs/file")).value(), "content");
  ASSERT_OK(unmount_image(found.value()));

  const auto again = mount_image(store(), sparse());
  ASSERT_OK(again);
  EXPECT_EQ(read_file(store("fs/file")).value(), "content");
  ASSERT_OK(unmount_image(again.value()));
}

TEST_F(ImageTest, AMountedOneIsUsedAgain) {
  const auto first = mount_image(store(), sparse());
  ASSERT_OK(first);
  const auto second = find_image(store());
  ASSERT_OK(second);
  EXPECT_EQ(second.value().device, first.value().device);
  EXPECT_EQ(second.value().direct, first.value().direct);
  EXPECT_EQ(loop_count(), 1u);
  const auto table = mount_table();
  ASSERT_OK(table);
  EXPECT_EQ(std::count_if(table.value().begin(), table.value().end(),
                          [&](const MountEntry& entry) { return entry.mountpoint == store("fs"); }),
            1);
  ASSERT_OK(unmount_image(second.value()));
}

TEST_F(ImageTest, ALoopDeviceLeftAttachedIsUsedAgain) {
  const auto first = mount_image(store(), sparse());
  ASSERT_OK(first);
  ASSERT_EQ(::umount2(store("fs").c_str(), 0), 0);
  ASSERT_EQ(loop_count(), 1u);
  const auto second = find_image(store());
  ASSERT_OK(second);
  EXPECT_EQ(second.value().device, first.value().device);
  EXPECT_EQ(loop_count(), 1u);
  ASSERT_OK(unmount_image(second.value()));
}

TEST_F(ImageTest, MountedElsewhereIsBusyAndNamed) {
  const auto first = mount_image(store(), sparse());
  ASSERT_OK(first);
  ASSERT_EQ(::umount2(store("fs").c_str(), 0), 0);
  const std::string other = outside("other");
  ASSERT_EQ(::mkdir(other.c_str(), 0700), 0);
  ASSERT_EQ(::mount(first.value().device.c_str(), other.c_str(), "xfs", 0, nullptr), 0);
  const auto second = find_image(store());
  EXPECT_EQ(::umount2(other.c_str(), 0), 0);
  EXPECT_ERRNO(EBUSY, second);
  EXPECT_NE(second.error().message().find(other), std::string::npos) << second.error().message();
}

TEST_F(ImageTest, AFolderTakenByAnotherMountIsBusy) {
  ASSERT_OK(unmount_image(mount_image(store(), sparse()).value()));
  ASSERT_EQ(::mount("other", store("fs").c_str(), "tmpfs", 0, "size=64k"), 0);
  const auto found = find_image(store());
  EXPECT_EQ(::umount2(store("fs").c_str(), 0), 0);
  EXPECT_ERRNO(EBUSY, found);
  EXPECT_EQ(loop_count(), 0u);
}

TEST_F(ImageTest, UnmountSaysWhoHoldsIt) {
  const auto image = mount_image(store(), sparse());
  ASSERT_OK(image);
  {
    const auto held = open_at(AT_FDCWD, store("fs/file"), O_RDWR | O_CREAT);
    ASSERT_OK(held);
    const auto result = unmount_image(image.value());
    EXPECT_ERRNO(EBUSY, result);
    EXPECT_NE(result.error().message().find("(pid " + std::to_string(::getpid()) + ")"), std::string::npos)
        << result.error().message();
    EXPECT_EQ(loop_count(), 1u);
  }
  EXPECT_OK(unmount_image(image.value()));
}

TEST_F(ImageTest, OtherThanAskedForIsRefused) {
  ASSERT_OK(unmount_image(mount_image(store(), sparse()).value()));
  EXPECT_ERRNO(EEXIST, mount_image(store(), sparse(kMinimumImageSize * 2)));
  ImageOptions other = sparse();
  other.sector = 4096;
  EXPECT_ERRNO(EEXIST, mount_image(store(), other));
  EXPECT_EQ(loop_count(), 0u);
  EXPECT_EQ(inspect_image(store(kImageName)).value().size, kMinimumImageSize);
}

TEST_F(ImageTest, SectorsOf4096Stay) {
  ImageOptions options = sparse();
  options.sector = 4096;
  const auto made = mount_image(store(), options);
  ASSERT_OK(made);
  ASSERT_OK(unmount_image(made.value()));
  EXPECT_EQ(inspect_image(store(kImageName)).value().sector, 4096u);
  const auto found = find_image(store());
  ASSERT_OK(found);
  {
    const auto file = open_at(AT_FDCWD, store("fs/file"), O_RDWR | O_CREAT | O_DIRECT);
    ASSERT_OK(file);
    EXPECT_EQ(direct_alignment(file.value().get()).offset, 4096u);
    EXPECT_TRUE(direct_alignment(file.value().get()).harmful());
  }
  ASSERT_OK(unmount_image(found.value()));
}

// A discard would free blocks of the image, and a store on it would break once the disk is full.
TEST_F(ImageTest, AllocatedInFullAndStaysSo) {
  const auto space = stdfs::space(outside(""));
  if (space.available < 2 * kMinimumImageSize) GTEST_SKIP() << "needs 1 GiB free in " << outside("");
  const auto image = mount_image(store(), {.size = kMinimumImageSize});
  ASSERT_OK(image);
  EXPECT_TRUE(inspect_image(store(kImageName)).value().allocated);
  const auto trimmed = run_process({"fstrim", store("fs")});
  ASSERT_OK(trimmed);
  EXPECT_TRUE(inspect_image(store(kImageName)).value().allocated);
  ASSERT_OK(unmount_image(image.value()));
}

TEST_F(ImageTest, SparseIsNotAllocated) {
  ASSERT_OK(unmount_image(mount_image(store(), sparse()).value()));
  EXPECT_FALSE(inspect_image(store(kImageName)).value().allocated);
}

TEST_F(ImageTest, ATooSmallDiskIsLeftAsItWas) {
  const auto image = mount_image(store(), {.size = uint64_t{1} << 50});
  EXPECT_ERRNO(ENOSPC, image);
  EXPECT_NE(image.error().message().find("does not fit"), std::string::npos) << image.error().message();
  EXPECT_FALSE(stdfs::exists(store()));

  ASSERT_EQ(::mkdir(store().c_str(), 0700), 0);
  EXPECT_ERRNO(ENOSPC, mount_image(store(), {.size = uint64_t{1} << 50}));
  EXPECT_TRUE(stdfs::is_empty(store()));
}

TEST_F(ImageTest, AFailedMkfsLeavesNothing) {
  const char* path = std::getenv("PATH");
  const std::string before = path == nullptr ? "" : path;
  ASSERT_EQ(::mkdir(outside("bin").c_str(), 0700), 0);
  std::ofstream(outside("bin/mkfs.xfs")) << "#!/bin/sh\necho no such luck >&2\nexit 1\n";
  stdfs::permissions(outside("bin/mkfs.xfs"), stdfs::perms::owner_all);
  ::setenv("PATH", (outside("bin") + ":" + before).c_str(), 1);
  const auto image = mount_image(store(), sparse());
  ::setenv("PATH", before.c_str(), 1);
  EXPECT_ERRNO(EIO, image);
  EXPECT_NE(image.error().message().find("no such luck"), std::string::npos) << image.error().message();
  EXPECT_FALSE(stdfs::exists(store()));
}

TEST_F(ImageTest, HalfAnImageOfACrashIsMadeAnew) {
  ASSERT_EQ(::mkdir(store().c_str(), 0700), 0);
  std::ofstream(store("image.xfs.new")) << "half";
  const auto image = mount_image(store(), sparse());
  ASSERT_OK(image);
  EXPECT_FALSE(stdfs::exists(store("image.xfs.new")));
  ASSERT_OK(unmount_image(image.value()));
}

TEST_F(ImageTest, WhatIsNoImageIsLeftAlone) {
  ASSERT_EQ(::mkdir(store().c_str(), 0700), 0);
  std::ofstream(store(kImageName)) << "somebody's data";
  EXPECT_ERRNO(EINVAL, find_image(store()));
  EXPECT_ERRNO(EINVAL, mount_image(store(), sparse()));
  EXPECT_EQ(read_file(store(kImageName)).value(), "somebody's data");
  EXPECT_EQ(loop_count(), 0u);
}

TEST_F(ImageTest, AMissingImageSaysHowToMakeOne) {
  ASSERT_EQ(::mkdir(store().c_str(), 0700), 0);
  const auto found = find_image(store());
  EXPECT_ERRNO(ENOENT, found);
  EXPECT_NE(found.error().message().find("--image"), std::string::npos);
  EXPECT_ERRNO(ENOENT, find_image(outside("nowhere")));
}

TEST_F(ImageTest, TheSmallestAndTheSectors) {
  const auto small = mount_image(store(), {.size = kMinimumImageSize - 1});
  EXPECT_ERRNO(EINVAL, small);
  EXPECT_NE(small.error().message().find("512M"), std::string::npos) << small.error().message();
  EXPECT_ERRNO(EINVAL, mount_image(store(), {.size = kMinimumImageSize, .sector = 1024}));
  EXPECT_FALSE(stdfs::exists(store()));
}

TEST(ParseSizeTest, Units) {
  EXPECT_EQ(parse_size("8G").value(), uint64_t{8} << 30);
  EXPECT_EQ(parse_size("512M").value(), uint64_t{512} << 20);
  EXPECT_EQ(parse_size("1T").value(), uint64_t{1} << 40);
  EXPECT_EQ(parse_size("4096K").value(), uint64_t{4096} << 10);
}

TEST(ParseSizeTest, AnythingElse) {
  for (const char* text : {"", "G", "8", "-8G", "+8G", "8.5G", "8GB", "8 G", " 8G", "8g", "0M", "8X", "0x8G",
                           "99999999T", "99999999999999999999K"}) {
    const auto size = parse_size(text);
    EXPECT_ERRNO(EINVAL, size) << text;
    EXPECT_NE(size.error().message().find('\'' + std::string(text) + '\''), std::string::npos)
        << size.error().message();
  }
}

TEST(FormatSizeTest, LargestWholeUnit) {
  EXPECT_EQ(format_size(uint64_t{8} << 30), "8G");
  EXPECT_EQ(format_size(uint64_t{1536} << 20), "1536M");
  EXPECT_EQ(format_size(1000), "1000 bytes");
  EXPECT_EQ(format_size(uint64_t{2048} << 40), "2048T");
}

}  // namespace
}  // namespace ckptfs::io
