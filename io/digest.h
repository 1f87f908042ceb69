// BLAKE3, by its official C implementation. Stateless; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace ckptfs::io {

using Digest = std::array<std::byte, 32>;

Digest digest_of(std::span<const std::byte> bytes);

}  // namespace ckptfs::io
