#include "gpu/check_read.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "gpu/checkpoint.h"
#include "gpu/step_save.h"
#include "tests/gpu/staging_test.h"

namespace ckptfs::gpu {
namespace {

using io::testing::pattern;
using meta::formats::Dtype;
using testing::kSlot;

constexpr uint64_t kHeaderBytes = 4096;       // of the file
constexpr uint64_t kTensorBytes = 3 * kSlot;  // of a tensor; a chunk is a slot here

// A step with two tensors, "a" and then "b", in one file.
class CheckReadTest : public testing::StagingTest {
 protected:
  void save(bool digests) {
    auto save = StepSave::begin(staging_, {path(""), "step_1", "a1"});
    ASSERT_OK(save);
    save.value()->take_digests(digests);
    std::vector<SavedTensor> tensors;
    for (const char* const name : {"a", "b"}) {
      tensors.push_back(
          {name, Dtype::uint8, {kTensorBytes}, content_.data() + tensors.size() * kTensorBytes, kTensorBytes});
    }
    ASSERT_OK(save.value()->add_tensors("rank00.safetensors", tensors, nullptr));
    ASSERT_OK(save.value()->wait_durable());
    ASSERT_OK(save.value()->commit(false));
    ASSERT_EQ(io::stat_at(AT_FDCWD, file()).value().st_size, static_cast<off_t>(kHeaderBytes + 2 * kTensorBytes));
  }

  std::string file() const { return path("step_1/rank00.safetensors"); }

  void flip(uint64_t offset) {
    auto fd = io::open_at(AT_FDCWD, file(), O_RDWR);
    ASSERT_OK(fd);
    std::byte byte{};
    ASSERT_EQ(::pread(fd.value().get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= std::byte{16};
    ASSERT_EQ(::pwrite(fd.value().get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }

  // Reads the file past the page cache from now on, or from there.
  void put_into_cache(bool cached) {
    auto fd = io::open_at(AT_FDCWD, file(), O_RDONLY);
    ASSERT_OK(fd);
    ASSERT_OK(io::fsync_fd(fd.value().get()));
    ASSERT_EQ(::posix_fadvise(fd.value().get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    if (cached) io::testing::content_of_file(fd.value().get());
  }

  // Bytes of the tensors, both of which are one after the other here.
  Result<Checkpoint::Report> load(uint64_t begin, uint64_t end) {
    TRY_ASSIGN(const auto checkpoint, Checkpoint::open(path("step_1")));
    loaded_.assign(2 * kTensorBytes, std::byte{0});
    std::vector<Request> requests;
    for (size_t item = 0; item < 2; ++item) {
      const uint64_t from = std::max(begin, item * kTensorBytes), to = std::min(end, (item + 1) * kTensorBytes);
      if (from < to) requests.push_back({item, from - item * kTensorBytes, to - from, loaded_.data() + from});
    }
    return checkpoint->load(*staging_, requests, nullptr);
  }

  std::vector<std::byte> content_ = pattern(2 * kTensorBytes, 5);
  std::vector<std::byte> loaded_;
};

TEST_F(CheckReadTest, AFlippedByteIsFoundWhereverItIs) {
  for (const bool cached : {false, true}) {
    for (const uint64_t at : {uint64_t{0}, kSlot - kHeaderBytes, kTensorBytes - 1, kTensorBytes, kTensorBytes + kSlot,
                              2 * kTensorBytes - 1}) {
      std::filesystem::remove_all(path("step_1"));
      save(true);
      put_into_cache(cached);
      const auto whole = load(0, 2 * kTensorBytes);
      ASSERT_OK(whole);
      EXPECT_TRUE(loaded_ == content_);
      EXPECT_EQ(whole.value().moved.checked, kHeaderBytes + 2 * kTensorBytes) << "all of the file";
      flip(kHeaderBytes + at);
      put_into_cache(cached);
      const auto found = load(0, 2 * kTensorBytes);
      EXPECT_ERRNO(EIO, found);
      const std::string& words = found.error().message();
      EXPECT_NE(words.find(file()), std::string::npos) << words;
      EXPECT_NE(words.find(at < kTensorBytes ? "a" : "b", words.find("Tensors: ")), std::string::npos) << words;
    }
  }
}

TEST_F(CheckReadTest, OnlyWhatIsReadWholeIsChecked) {
  save(true);
  flip(kHeaderBytes + kTensorBytes + kSlot);  // in "b"
  for (const bool cached : {false, true}) {
    put_into_cache(cached);
    EXPECT_ERRNO(EIO, load(kTensorBytes + kSlot - kHeaderBytes, 2 * kTensorBytes)) << "its chunk is covered";
    const auto part = load(kTensorBytes + kSlot, kTensorBytes + kSlot + 100);
    ASSERT_OK(part);
    EXPECT_EQ(part.value().moved.checked, 0U) << "a small part of its chunk";
    const auto other = load(0, kTensorBytes - kHeaderBytes);
    ASSERT_OK(other);
    EXPECT_EQ(other.value().moved.checked, kTensorBytes);
  }
}

TEST_F(CheckReadTest, WithoutDigestsNothingIsChecked) {
  save(false);
  flip(kHeaderBytes);
  const auto report = load(0, 2 * kTensorBytes);
  ASSERT_OK(report);
  EXPECT_EQ(report.value().moved.checked, 0U);
}

TEST_F(CheckReadTest, AManifestThatDoesNotFitIsAnErrorInWords) {
  save(true);
  const std::string manifest = path("step_1/ckptfs.rank00.json");
  std::string text = io::read_file(manifest).value();
  const size_t first = text.find('"', text.find('[', text.find("digests"))), second = text.find('"', first + 66);
  text.erase(first, second - first);
  ASSERT_OK(io::replace_file(manifest, text, 0666));
  const auto refused = load(0, 2 * kTensorBytes);
  EXPECT_ERRNO(EBADMSG, refused);
  EXPECT_NE(refused.error().message().find("ckptfs.rank00.json"), std::string::npos) << refused.error().message();
  EXPECT_NE(refused.error().message().find("rank00.safetensors: it has 6 digests, and should have 7"),
            std::string::npos)
      << refused.error().message();
}

}  // namespace
}  // namespace ckptfs::gpu
