#include "meta/formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "io/fd.h"
#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

Result<SafetensorsHeader> read_header(const std::string& content) {
  return read_safetensors_header(file_of(content).get());
}

std::string with_length(const std::string& json, size_t data) {
  std::string whole(8, '\0');
  const uint64_t length = json.size();
  std::memcpy(whole.data(), &length, sizeof(length));
  return whole + json + std::string(data, 'd');
}

SafetensorsHeader example() {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"quoted", "\"\n"}};
  header.tensors = {{"a.weight", Dtype::float32, {2, 3}, 0, 24},
                    {"scalar", Dtype::bfloat16, {}, 0, 2},
                    {"none \xc3\xa9", Dtype::int64, {0, 4}, 0, 0}};
  return header;
}

TEST(Safetensors, ComesBack) {
  const std::string header = safetensors_header(example());
  EXPECT_EQ(header.size() % 8, 0U);
  const auto back = read_header(header + std::string(26, 'd'));
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_EQ(back.value().tensors.size(), 3U);
  const SafeTensor& first = back.value().tensors[0];
  EXPECT_EQ(first.name, "a.weight");
  EXPECT_EQ(first.dtype, Dtype::float32);
  EXPECT_EQ(first.shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(first.offset, header.size());
  EXPECT_EQ(first.size, 24U);
  EXPECT_EQ(back.value().tensors[1].offset, header.size() + 24);
}

TEST(Safetensors, DataBeginWhereTheyAreToBegin) {
  for (const uint64_t begin : {0, 8, 512, 4088}) {
    const std::string header = safetensors_header(example(), 4096, begin);
    EXPECT_EQ(header.size() % 4096, begin);
    EXPECT_LE(header.size(), safetensors_header(example()).size() + 4096);
    const auto back = read_header(header + std::string(26, 'd'));
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(back.value().tensors[0].offset, header.size());
  }
}

TEST(Safetensors, NothingAtAll) {
  const auto empty = read_header(safetensors_header({}));
  ASSERT_TRUE(empty) << empty.error().message();
  EXPECT_TRUE(empty.value().tensors.empty());
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = safetensors_header(example()) + std::string(26, 'd');
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(read_header(whole.substr(0, size))) << size;
  EXPECT_FALSE(read_header(whole + "x"));
}

TEST(Safetensors, LiesAreErrors) {
  const std::string tensor = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  std::string many_ones;
  for (int dimension = 0; dimension < 100; ++dimension) many_ones += ",1";
  ASSERT_TRUE(read_header(with_length("{\"a\":" + tensor + "}", 4)));
  const struct {
    std::string json;
    size_t data;
    int errno_value = EBADMSG;
  } lies[] = {
      {"", 0},
      {"[]", 0},
      {"{\"a\":" + tensor + ",\"a\":" + tensor + "}", 4},
      {"{\"a\":" + tensor + ",\"b\":" + tensor + "}", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967297],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4},
      {R"({"a":{"dtype":"WHAT","shape":[1],"data_offsets":[0,4]}})", 4, ENOTSUP},
      {R"({"__metadata__":{"a":1}})", 0},
      {R"({"__metadata__":{"a":{}}})", 0},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1" + many_ones + "],\"data_offsets\":[0,4]}}", 4},
      {std::string(100000, '['), 0},
      {std::string(100000, '{'), 0},
      {"{\"" + std::string(5000, 'n') + "\":" + tensor + "}", 4, EFBIG},
      {std::string(kMostSafetensorsHeader + 1, ' '), 0, EFBIG},
  };
  for (const auto& lie : lies) {
    const auto header = read_header(with_length(lie.json, lie.data));
    ASSERT_FALSE(header) << lie.json.substr(0, 80);
    EXPECT_EQ(header.error().errno_value(), lie.errno_value) << header.error().message();
  }
}

TEST(Safetensors, AHeaderOfTwoToTheSixtyThird) {
  std::string content(16, '{');
  const uint64_t length = uint64_t{1} << 63;
  std::memcpy(content.data(), &length, sizeof(length));
  const auto header = read_header(content);
  ASSERT_FALSE(header);
  EXPECT_NE(header.error().message().find("9223372036854775808"), std::string::npos);
}

}  // namespace
}  // namespace ckptfs::meta::formats
