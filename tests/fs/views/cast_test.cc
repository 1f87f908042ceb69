#include "fs/views/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace ckptfs::fs {
namespace {

template <class To, class From>
std::vector<To> cast_all(const std::vector<From>& from, Dtype from_type, Dtype to_type) {
  std::vector<To> to(from.size());
  cast(std::as_bytes(std::span(from)), from_type, std::as_writable_bytes(std::span(to)), to_type);
  return to;
}

// Rounds to the nearest value of the type, ties to even, by computing with the exact values in double.
uint16_t nearest(float value, Dtype type) {
  const int digits = type == Dtype::bfloat16 ? 8 : 11, lowest = type == Dtype::bfloat16 ? -126 : -14;
  const double largest = type == Dtype::bfloat16 ? 0x1.FEp127 : 65504.0;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t infinite = type == Dtype::bfloat16 ? 0x7f80 : 0x7c00;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return sign | infinite;
  const int exponent = std::max(magnitude == 0 ? lowest : std::ilogb(magnitude), lowest);
  const double unit = std::ldexp(1.0, exponent - (digits - 1));
  const double rounded = std::nearbyint(magnitude / unit) * unit;  // ties to even
  if (rounded > largest) return sign | infinite;
  if (rounded < std::ldexp(1.0, lowest)) {
    return sign | static_cast<uint16_t>(rounded / std::ldexp(1.0, lowest - (digits - 1)));
  }
  const int rounded_exponent = std::ilogb(rounded);
  const auto mantissa = static_cast<uint16_t>(std::ldexp(rounded, digits - 1 - rounded_exponent));
  const auto biased = static_cast<uint16_t>(rounded_exponent - lowest + 1);
  return static_cast<uint16_t>(sign | (biased << (digits - 1)) | (mantissa & ((1 << (digits - 1)) - 1)));
}

std::vector<float> trying() {
  std::vector<float> values{0.0F,       -0.0F,       1.0F,
                            -1.0F,      65504.0F,    65519.9F,
                            65520.0F,   65536.0F,    0x1p-14F,
                            0x1p-15F,   0x1p-24F,    0x1p-25F,
                            0x1.8p-24F, 0x1p-26F,    0x1p-126F,
                            0x1p-149F,  1.0009765F,  1.0004883F,
                            1.0014648F, 3.4e38F,     -3.4e38F,
                            1e-40F,     0.1F,        0x1.01p0F,
                            0x1.03p0F,  0x1.FFp127F, std::numeric_limits<float>::infinity()};
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed): the test uses the same numbers each time
  while (values.size() < 200000) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isnan(value)) values.push_back(value);
    values.push_back(std::ldexp(static_cast<float>(random() % 4096) / 2048.0F, static_cast<int>(random() % 44) - 28));
  }
  return values;
}

TEST(Cast, RoundsToNearestEven) {
  const auto values = trying();
  for (const Dtype type : {Dtype::float16, Dtype::bfloat16}) {
    const auto halves = cast_all<uint16_t>(values, Dtype::float32, type);
    for (size_t at = 0; at < values.size(); ++at) {
      ASSERT_EQ(halves[at], nearest(values[at], type)) << values[at] << " as " << torch_name(type);
    }
  }
}

// The remainder at the end of a chunk takes another code path than the rest.
TEST(Cast, IsTheSameWhereverAValueLies) {
  auto values = trying();
  for (const uint32_t nan : {0x7fc00000U, 0xffc00000U, 0x7f800001U, 0x7fffffffU, 0x7fa5a5a5U, 0xff802000U}) {
    values.insert(values.begin(), std::bit_cast<float>(nan));
  }
  for (const Dtype type : {Dtype::float16, Dtype::bfloat16}) {
    const auto all = cast_all<uint16_t>(values, Dtype::float32, type);
    for (size_t at = 0; at < 5000; ++at) {
      const auto one = cast_all<uint16_t>(std::vector<float>{values[at]}, Dtype::float32, type);
      ASSERT_EQ(one[0], all[at]) << values[at];
    }
  }
}

TEST(Cast, EveryHalfComesBack) {
  std::vector<uint16_t> halves;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) halves.push_back(static_cast<uint16_t>(bits));
  for (const Dtype type : {Dtype::float16, Dtype::bfloat16}) {
    const auto floats = cast_all<float>(halves, type, Dtype::float32);
    const auto back = cast_all<uint16_t>(floats, Dtype::float32, type);
    for (size_t at = 0; at < halves.size(); ++at) {
      if (std::isnan(floats[at])) {
        const float again = cast_all<float>(std::vector<uint16_t>{back[at]}, type, Dtype::float32)[0];
        ASSERT_TRUE(std::isnan(again)) << at;
      } else {
        ASSERT_EQ(back[at], halves[at]);
      }
    }
  }
}

TEST(Cast, BetweenHalves) {
  const std::vector<uint16_t> halves{0x3c00, 0x7bff, 0x0001};  // 1, 65504, 2^-24
  const auto brain = cast_all<uint16_t>(halves, Dtype::float16, Dtype::bfloat16);
  EXPECT_EQ(brain, (std::vector<uint16_t>{0x3f80, 0x4780, 0x3380}));
}

}  // namespace
}  // namespace ckptfs::fs
