#include "fs/views/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace ckptfs::fs {
namespace {

constexpr size_t kCastChunk = 1024;  // elements that are cast at a time, on the stack
using Floats = std::array<float, kCastChunk>;
using Halves = std::array<uint16_t, kCastChunk>;

// c10/util/BFloat16.h, round_to_nearest_even
uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return nan ? uint16_t{0x7fc0} : static_cast<uint16_t>(rounded >> 16);
}

float from_bfloat16(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

// c10/util/Half.h, fp16_ieee_from_fp32_value: the addition of a power of two rounds as the hardware does.
uint16_t to_float16(float value) {
  constexpr float to_infinity = 0x1.0p+112f, to_zero = 0x1.0p-110f;
  const auto bits = std::bit_cast<uint32_t>(value);
  float base = (std::bit_cast<float>(bits & 0x7fffffff) * to_infinity) * to_zero;
  const uint32_t doubled = bits + bits;
  const uint32_t bias = std::max(doubled & 0xff000000, uint32_t{0x71000000});
  base = std::bit_cast<float>((bias >> 1) + 0x07800000) + base;
  const auto sum = std::bit_cast<uint32_t>(base);
  const uint32_t magnitude = ((sum >> 13) & 0x7c00) + (sum & 0x0fff);
  // A NaN keeps the upper bits of its payload and becomes quiet, as with F16C.
  const uint32_t nan = 0x7e00 | ((bits >> 13) & 0x01ff);
  return static_cast<uint16_t>((bits & 0x80000000) >> 16 | (doubled > 0xff000000 ? nan : magnitude));
}

// c10/util/Half.h, fp16_ieee_to_fp32_value
float from_float16(uint16_t value) {
  const uint32_t word = uint32_t{value} << 16, sign = word & 0x80000000, doubled = word + word;
  const float normal = std::bit_cast<float>((doubled >> 4) + (uint32_t{0xe0} << 23)) * 0x1.0p-112f;
  const float denormal = std::bit_cast<float>((doubled >> 17) | (uint32_t{126} << 23)) - 0.5f;
  const uint32_t magnitude = std::bit_cast<uint32_t>(doubled < (uint32_t{1} << 27) ? denormal : normal);
  return std::bit_cast<float>(sign | magnitude);
}

#if defined(__x86_64__)
// The functions `..._quickly` cast many elements of any alignment at a time, with the same rounding as torch and the
// functions above. They return how many elements they have cast.
__attribute__((target("avx,f16c"))) size_t to_float16_quickly(const std::byte* from, std::byte* to, size_t count) {
  size_t at = 0;
  for (; at + 8 <= count; at += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at * sizeof(float)));
    const __m128i halves = _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at * sizeof(uint16_t)), halves);
  }
  return at;
}

// The instructions of to_float16_quickly().
bool has_f16c() {
  static const bool has = [] {  // clang's __builtin_cpu_supports does not know f16c
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has;
}

// As to_bfloat16, of eight floats; each result in 32 bits.
__attribute__((target("avx2"))) __m256i eight_to_bfloat16(const std::byte* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256 values = _mm256_castsi256_ps(bits);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_set1_epi32(0x7fc0), nan);
}

__attribute__((target("avx2"))) size_t to_bfloat16_quickly(const std::byte* from, std::byte* to, size_t count) {
  constexpr int kInOrder = 0xd8;  // restores the order, since packing works on each half of the register by itself
  size_t at = 0;
  for (; at + 16 <= count; at += 16) {
    const std::byte* const values = from + at * sizeof(float);
    const __m256i packed =
        _mm256_packus_epi32(eight_to_bfloat16(values), eight_to_bfloat16(values + 8 * sizeof(float)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at * sizeof(uint16_t)),
                        _mm256_permute4x64_epi64(packed, kInOrder));
  }
  return at;
}

// The instructions of to_bfloat16_quickly().
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#endif

#if defined(__x86_64__)
size_t cast_quickly(const std::byte* source, Dtype from, std::byte* target, Dtype to, size_t count) {
  if (from == Dtype::float32 && to == Dtype::bfloat16 && has_avx2()) {
    return to_bfloat16_quickly(source, target, count);
  }
  if (from == Dtype::float32 && to == Dtype::float16 && has_f16c()) {
    return to_float16_quickly(source, target, count);
  }
  return 0;
}
#else
size_t cast_quickly(const std::byte*, Dtype, std::byte*, Dtype, size_t) { return 0; }
#endif

void floats_of(const Halves& halves, Dtype from, Floats& floats, size_t count) {
  if (from == Dtype::bfloat16) {
    for (size_t at = 0; at < count; ++at) floats[at] = from_bfloat16(halves[at]);
  } else {
    for (size_t at = 0; at < count; ++at) floats[at] = from_float16(halves[at]);
  }
}

void halves_of(const Floats& floats, Dtype to, Halves& halves, size_t count) {
  if (to == Dtype::bfloat16) {
    for (size_t at = 0; at < count; ++at) halves[at] = to_bfloat16(floats[at]);
  } else {
    for (size_t at = 0; at < count; ++at) halves[at] = to_float16(floats[at]);
  }
}

void cast_chunk(const std::byte* source, Dtype from, std::byte* target, Dtype to, size_t count) {
  Floats floats;
  Halves halves;
  if (from == Dtype::float32) {
    std::memcpy(floats.data(), source, count * sizeof(float));
  } else {
    std::memcpy(halves.data(), source, count * sizeof(uint16_t));
    floats_of(halves, from, floats, count);
  }
  if (to == Dtype::float32) {
    std::memcpy(target, floats.data(), count * sizeof(float));
  } else {
    halves_of(floats, to, halves, count);
    std::memcpy(target, halves.data(), count * sizeof(uint16_t));
  }
}

}  // namespace

bool is_castable(Dtype dtype) { return dtype == Dtype::float32 || dtype == Dtype::float16 || dtype == Dtype::bfloat16; }

void cast(std::span<const std::byte> source, Dtype from, std::span<std::byte> target, Dtype to) {
  const size_t wide = size_of(from), narrow = size_of(to), elements = source.size() / wide;
  if (from == to) {
    std::memcpy(target.data(), source.data(), elements * wide);
    return;
  }
  for (size_t at = cast_quickly(source.data(), from, target.data(), to, elements); at < elements; at += kCastChunk) {
    const size_t count = std::min(kCastChunk, elements - at);
    cast_chunk(source.data() + at * wide, from, target.data() + at * narrow, to, count);
  }
}

}  // namespace ckptfs::fs
