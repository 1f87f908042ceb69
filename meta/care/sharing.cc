#include "meta/care/sharing.h"

#include <fcntl.h>

#include <algorithm>

#include "io/clone.h"
#include "meta/accounting/accounting.h"

namespace ckptfs::meta {
namespace {

struct Side {
  BlobDigest digest;
  std::vector<io::Digest> chunks;
  io::Fd fd;
};

// The digests are empty if the blob has no valid ones, or is gone.
Result<Side> open_side(const Store& store, BlobNumber blob) {
  Side side;
  TRY_ASSIGN(const auto record, none_if_gone(store.index().blob(blob)));
  const bool alive = record && (record->state == BlobState::live || record->state == BlobState::frozen);
  if (!alive || record->digest.state != DigestState::taken || !store.tree().write_back().check(blob)) return side;
  side.digest = record->digest;
  TRY_ASSIGN(side.chunks, digests_of(store.index(), blob, side.digest));
  TRY_ASSIGN(side.fd, store.blobs().open(blob, O_RDONLY));
  return side;
}

// The parts of `ranges` that lie in chunks with equal digests on both sides.
std::vector<io::Range> equal_parts(const std::vector<io::Range>& ranges, const Side& a, const Side& b) {
  std::vector<io::Range> parts;
  for (const io::Range& range : ranges) {
    const uint64_t end = range.offset + range.length;
    for (uint64_t at = range.offset; at < end;) {
      const uint64_t chunk = at / kDigestChunk;
      const uint64_t next = std::min(end, (chunk + 1) * kDigestChunk);
      if (a.chunks[chunk] == b.chunks[chunk]) parts.push_back({at, next - at});
      at = next;
    }
  }
  return parts;
}

}  // namespace

Result<uint64_t> share_equal_chunks(Store& store, BlobNumber from, BlobNumber to, const Pause& pause) {
  TRY_ASSIGN(const Side older, open_side(store, from));
  TRY_ASSIGN(const Side newer, open_side(store, to));
  const uint64_t length = std::min(older.digest.length, newer.digest.length);
  if (length == 0 || from == to) return uint64_t{0};
  TRY_ASSIGN(const auto ranges, io::unshared_ranges(older.fd.get(), newer.fd.get(), length));
  uint64_t shared = 0;
  for (const io::Range& part : equal_parts(ranges, older, newer)) {
    const auto offset = static_cast<off_t>(part.offset);
    const auto began = std::chrono::steady_clock::now();
    const auto done = io::dedupe_range(older.fd.get(), offset, newer.fd.get(), offset, part.length);
    store.accounting().forget(to);  // whether all of it was shared or the kernel gave up on the way
    if (!done) return done.error();
    shared += done.value();
    if (!pause(std::chrono::steady_clock::now() - began)) break;
  }
  return shared;
}

}  // namespace ckptfs::meta
