// BLAKE3, by its official C implementation. Stateless; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckptfs::io {

using Digest = std::array<std::byte, 32>;

Digest digest_of(std::span<const std::byte> bytes);

// In hexadecimal: 64 lower-case digits.
std::string hex_of(const Digest& digest);
// Returns nothing if the text is not what hex_of() makes.
std::optional<Digest> digest_from_hex(std::string_view text);

}  // namespace ckptfs::io
