#include "meta/formats/torch_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "io/fd.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

using std::string_literals::operator""s;

// What torch 2.15 wrote (tests/fuzz/corpus/torch_file).
std::string sample(const std::string& name) {
  auto content = io::read_file(CKPTFS_SOURCE_DIR "/tests/fuzz/corpus/torch_file/" + name);
  EXPECT_TRUE(content) << content.error().message();
  return content ? std::move(content).value() : std::string();
}

class TorchFileTest : public testing::Test {
 protected:
  TorchFileTest() {
    auto opened = TorchFile::open(input_.get());
    EXPECT_TRUE(opened) << opened.error().message();
    file_.emplace(std::move(opened).value());
  }
  TorchTensor tensor(const std::string& name) {
    auto found = TorchFile::tensor(*file_->root().find(name));
    EXPECT_TRUE(found) << found.error().message();
    EXPECT_TRUE(found.value()) << name;
    return *std::move(found).value();
  }
  template <class T>
  std::vector<T> content(const TorchTensor& tensor) {
    const auto range = file_->range(tensor);
    EXPECT_TRUE(range) << range.error().message();
    std::vector<T> values(range.value().size / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes_.data() + range.value().offset, range.value().size);
    return values;
  }

  const std::string bytes_ = sample("tensors");
  const io::Fd input_ = file_of(bytes_);
  std::optional<TorchFile> file_;
};

TEST_F(TorchFileTest, TensorsLieWhereTorchPutThem) {
  const auto base = tensor("base");
  EXPECT_EQ(base.dtype, Dtype::float32);
  EXPECT_EQ(base.shape, (std::vector<uint64_t>{12}));
  EXPECT_EQ(content<float>(base), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(content<float>(tensor("row")), (std::vector<float>{4, 5, 6, 7}));
  EXPECT_EQ(tensor("row").storage, base.storage);
  const auto scalar = tensor("scalar");
  EXPECT_EQ(scalar.dtype, Dtype::bfloat16);
  EXPECT_TRUE(scalar.shape.empty());
  EXPECT_EQ(content<uint16_t>(scalar), (std::vector<uint16_t>{0x4020}));
  EXPECT_EQ(tensor("fp8").dtype, Dtype::float8_e4m3fn);
  EXPECT_EQ(content<uint8_t>(tensor("fp8")), (std::vector<uint8_t>(4, 0x38)));
  EXPECT_EQ(tensor("empty").shape, (std::vector<uint64_t>{0, 3}));
  EXPECT_EQ(content<float>(tensor("empty")).size(), 0U);
}

TEST_F(TorchFileTest, ATurnedTensorHasNoRange) {
  const auto turned = tensor("turned");
  EXPECT_EQ(turned.shape, (std::vector<uint64_t>{4, 3}));
  EXPECT_EQ(turned.strides, (std::vector<uint64_t>{1, 4}));
  EXPECT_FALSE(turned.is_contiguous());
  EXPECT_EQ(file_->range(turned).error().errno_value(), ENOTSUP);
}

TEST_F(TorchFileTest, AttributesAndParametersAreSeenThrough) {
  EXPECT_EQ(tensor("flat").attributes->find("ds_id")->text(), "0_1");
  EXPECT_EQ(tensor("parameter").dtype, Dtype::float16);
  const auto state = *file_->root().find("state");
  EXPECT_EQ(state.kind(), Pickle::Kind::dict);
  ASSERT_EQ(state.pairs(), 2U);
  EXPECT_EQ(state.pair(0).first.text(), "weight");
  const auto weight = TorchFile::tensor(state.pair(0).second);
  ASSERT_TRUE(weight && weight.value());
  EXPECT_EQ(content<float>(*weight.value()), (std::vector<float>{1, 2}));
}

TEST_F(TorchFileTest, WhatIsNoTensorIsNone) {
  for (const char* name : {"none", "state", "shapes"}) {
    const auto found = TorchFile::tensor(*file_->root().find(name));
    ASSERT_TRUE(found) << name;
    EXPECT_FALSE(found.value()) << name;
  }
  const auto shapes = (*file_->root().find("shapes"))[0];
  EXPECT_EQ((*shapes.find("w"))[1].integer(), 3);
}

TEST(TorchFile, AParameterWithAttributes) {
  const io::Fd input = file_of(sample("with_attributes"));
  const auto file = TorchFile::open(input.get());
  ASSERT_TRUE(file) << file.error().message();
  const auto tensor = TorchFile::tensor(file.value().root());
  ASSERT_TRUE(tensor && tensor.value());
  EXPECT_EQ(tensor.value()->attributes->find("tag")->text(), "x");
}

TEST(TorchFile, WithoutSums) {
  const io::Fd input = file_of(sample("without_sums"));
  EXPECT_TRUE(TorchFile::open(input.get()));
}

TEST(TorchFile, TheOldFormatIsNamed) {
  const io::Fd input = file_of(sample("old"));
  const auto file = TorchFile::open(input.get());
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().errno_value(), ENOTSUP);
  EXPECT_NE(file.error().message().find("1.6"), std::string::npos);
}

TEST(TorchFile, WhatIsNoneIsAnError) {
  for (const std::string& content : {std::string(100000, '\0'), sample("tensors").substr(100)}) {
    const io::Fd input = file_of(content);
    const auto file = TorchFile::open(input.get());
    ASSERT_FALSE(file) << content.size();
    EXPECT_EQ(file.error().errno_value(), EBADMSG);
  }
}

// A process that dies in torch.save leaves such a file.
TEST(TorchFile, ABeginningIsToldFromWhatIsNone) {
  const std::string whole = sample("tensors");
  for (const size_t length : {size_t{0}, size_t{2}, size_t{64}, whole.size() / 2, whole.size() - 22}) {
    const io::Fd input = file_of(whole.substr(0, length));
    const auto file = TorchFile::open(input.get());
    ASSERT_FALSE(file) << length;
    EXPECT_EQ(file.error().errno_value(), ENODATA) << length << ": " << file.error().message();
  }
}

// Inverts every byte of the zip's structure and of the pickle. The result must be an error, or tensors within the file.
TEST(TorchFile, DamageIsNeverARangeOutside) {
  const std::string whole = sample("with_attributes");
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    const io::Fd input = file_of(damaged);
    auto file = TorchFile::open(input.get());
    if (!file) continue;
    const auto tensor = TorchFile::tensor(file.value().root());
    if (!tensor || !tensor.value()) continue;
    const auto range = file.value().range(*tensor.value());
    if (!range) continue;
    EXPECT_LE(range.value().offset + range.value().size, whole.size()) << at;
  }
}

}  // namespace
}  // namespace ckptfs::meta::formats
