#include "tests/io/testing.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>

namespace ckptfs::io::testing {

namespace {

// The image that the tests share; made by the first that wants it, taken down after the last.
class SharedImage : public ::testing::Environment {
 public:
  const MountedImage& get() {
    if (!image_) {
      store_ = std::make_unique<ScratchFolder>();
      Result<MountedImage> made = mount_image(store_->path("store"), {.size = kMinimumImageSize, .sparse = true});
      if (!made) {
        ADD_FAILURE() << "no image: " << made.error().message();
        std::abort();
      }
      image_ = made.value();
    }
    return *image_;
  }

  void TearDown() override {
    if (!image_) return;
    EXPECT_OK(unmount_image(*image_));
    image_.reset();
    store_.reset();
  }

 private:
  std::unique_ptr<ScratchFolder> store_;
  std::optional<MountedImage> image_;
};

SharedImage* const kSharedImage = [] {
  auto* environment = new SharedImage;  // googletest owns it
  ::testing::AddGlobalTestEnvironment(environment);
  return environment;
}();

}  // namespace

ScratchFolder::ScratchFolder(const std::filesystem::path& parent) : path_((parent / "ckptfs-io-XXXXXX").string()) {
  if (::mkdtemp(path_.data()) == nullptr) {
    ADD_FAILURE() << path_ << ": " << last_error().message();
    std::abort();
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code code;
  std::filesystem::remove_all(path_, code);
  EXPECT_FALSE(code) << path_ << ": " << code.message();
}

std::filesystem::path ScratchFolder::default_parent() {
  const char* folder = std::getenv("TMPDIR");
  return std::filesystem::canonical(folder == nullptr || *folder == '\0' ? "/dev/shm" : folder);
}

std::optional<std::string> no_images_reason() {
  if (::geteuid() != 0) return "needs root, to mount an image";
  if (::access("/dev/loop-control", R_OK | W_OK) != 0) return "needs loop devices (/dev/loop-control)";
  return std::nullopt;
}

void XfsTest::SetUp() {
  if (const auto reason = no_images_reason()) GTEST_SKIP() << *reason;
  folder_.emplace(image().folder);
}

Fd XfsTest::file(const std::string& name, std::span<const std::byte> content) const {
  Result<Fd> fd = open_at(AT_FDCWD, path(name), O_RDWR | O_CREAT | O_EXCL);
  EXPECT_OK(fd);
  if (!fd) return Fd();
  EXPECT_OK(write_full(fd.value().get(), content, 0));
  return std::move(fd).value();
}

const MountedImage& XfsTest::image() { return kSharedImage->get(); }

std::vector<std::byte> pattern(size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> content_of_file(int fd) {
  const Result<struct stat> status = stat_fd(fd);
  EXPECT_OK(status);
  std::vector<std::byte> bytes(status ? static_cast<size_t>(status.value().st_size) : 0);
  const Result<size_t> length = read_full(fd, bytes, 0);
  EXPECT_OK(length);
  EXPECT_EQ(length ? length.value() : 0, bytes.size());
  return bytes;
}

}  // namespace ckptfs::io::testing
