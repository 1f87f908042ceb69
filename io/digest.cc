#include "io/digest.h"

#include <blake3.h>

namespace ckptfs::io {

static_assert(sizeof(Digest) == BLAKE3_OUT_LEN);

Digest digest_of(std::span<const std::byte> bytes) {
  blake3_hasher hasher;
  blake3_hasher_init(&hasher);
  blake3_hasher_update(&hasher, bytes.data(), bytes.size());
  Digest digest;
  blake3_hasher_finalize(&hasher, reinterpret_cast<uint8_t*>(digest.data()), digest.size());
  return digest;
}

}  // namespace ckptfs::io
