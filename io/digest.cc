#include "io/digest.h"

#include <blake3.h>

#include <algorithm>
#include <cstring>

namespace ckptfs::io {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

Digest finish_blake3(const blake3_hasher& hasher) {
  Digest digest;
  blake3_hasher_finalize(&hasher, reinterpret_cast<uint8_t*>(digest.data()), digest.size());
  return digest;
}

}  // namespace

static_assert(sizeof(Digest) == BLAKE3_OUT_LEN);

struct Hasher::State {
  blake3_hasher hasher;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { blake3_hasher_init(&state_->hasher); }
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::add(std::span<const std::byte> bytes) {
  blake3_hasher_update(&state_->hasher, bytes.data(), bytes.size());
}

Digest Hasher::finish() const { return finish_blake3(state_->hasher); }

Digest digest_of(std::span<const std::byte> bytes) {
  blake3_hasher hasher;
  blake3_hasher_init(&hasher);
  blake3_hasher_update(&hasher, bytes.data(), bytes.size());
  return finish_blake3(hasher);
}

uint64_t short_digest_of(std::string_view text) {
  const Digest digest = digest_of(std::as_bytes(std::span(text)));
  uint64_t first = 0;
  std::memcpy(&first, digest.data(), sizeof first);
  return std::max<uint64_t>(first, 1);
}

std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kHexDigits[std::to_integer<size_t>(byte) >> 4];
    text += kHexDigits[std::to_integer<size_t>(byte) & 15];
  }
  return text;
}

std::optional<Digest> digest_from_hex(std::string_view text) {
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t at = 0; at < digest.size(); ++at) {
    const size_t high = kHexDigits.find(text[2 * at]), low = kHexDigits.find(text[2 * at + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    digest[at] = static_cast<std::byte>(high << 4 | low);
  }
  return digest;
}

}  // namespace ckptfs::io
