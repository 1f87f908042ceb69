// BLAKE3, by its official C implementation. The functions are stateless; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckptfs::io {

using Digest = std::array<std::byte, 32>;

Digest digest_of(std::span<const std::byte> bytes);
uint64_t short_digest_of(std::string_view text);  // the first 64 bits; never 0

// Digests bytes that come piece by piece. One thread at a time.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();
  void add(std::span<const std::byte> bytes);
  Digest finish() const;  // of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// In hexadecimal, by lower-case digits: 64 of a digest.
std::string hex_of(std::span<const std::byte> bytes);
// Returns nothing if the text is not what hex_of() makes.
std::optional<Digest> digest_from_hex(std::string_view text);

}  // namespace ckptfs::io
