#include "fs/open/copy_range.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "io/aligned_buffer.h"
#include "io/clone.h"
#include "io/fd.h"

namespace ckptfs::fs {

namespace {

constexpr size_t kChunk = size_t{1} << 20;

// Copies `length` bytes of the range by read and write, behind those that are done.
void copy_bytes(const CopyRange& range, uint64_t length, Copied& done) {
  thread_local io::AlignedBuffer memory;
  while (length > 0) {
    const size_t want = static_cast<size_t>(std::min<uint64_t>(length, kChunk));
    const auto buffer = memory.get(want);
    if (buffer.size() < want) {
      done.error = Error(ENOMEM);
      return;
    }
    const auto at = static_cast<off_t>(done.bytes());
    const auto got = io::read_full(range.from, buffer.first(want), range.from_offset + at);
    if (!got) {
      done.error = got.error();
      return;
    }
    if (const auto put = io::write_full(range.to, buffer.first(got.value()), range.to_offset + at); !put) {
      done.error = put.error();
      return;
    }
    done.copied += got.value();
    length -= got.value();
    if (got.value() < want) return;  // the source has become shorter
  }
}

bool means_not_shareable(int errno_value) {
  return errno_value == EOPNOTSUPP || errno_value == EINVAL || errno_value == EXDEV || errno_value == ETXTBSY;
}

}  // namespace

Copied copy_range(const CopyRange& range) {
  Copied done;
  const auto from = io::stat_fd(range.from);
  const auto to = io::stat_fd(range.to);
  if (!from || !to) {
    done.error = from ? to.error() : from.error();
    return done;
  }
  if (range.from_offset >= from.value().st_size) return done;
  uint64_t left = std::min<uint64_t>(range.length, static_cast<uint64_t>(from.value().st_size - range.from_offset));
  const auto block = static_cast<uint64_t>(from.value().st_blksize);
  const auto from_offset = static_cast<uint64_t>(range.from_offset);
  const auto to_offset = static_cast<uint64_t>(range.to_offset);

  if (range.share && from_offset % block == to_offset % block) {
    const uint64_t head = std::min(left, (block - from_offset % block) % block);
    copy_bytes(range, head, done);
    if (done.error || done.bytes() < head) return done;
    left -= head;
    // A last block that is not whole can be shared only if it ends both files.
    const bool to_both_ends = from_offset + head + left == static_cast<uint64_t>(from.value().st_size) &&
                              to_offset + head + left >= static_cast<uint64_t>(to.value().st_size);
    const uint64_t body = to_both_ends ? left : left - left % block;
    if (body > 0) {
      const auto cloned = io::clone_range(range.from, static_cast<off_t>(from_offset + head), range.to,
                                          static_cast<off_t>(to_offset + head), body);
      if (cloned) {
        done.cloned = body;
        left -= body;
      } else if (means_not_shareable(cloned.error().errno_value())) {
        done.clone_refused = true;
      } else {
        done.error = cloned.error();
        return done;
      }
    }
  }
  copy_bytes(range, std::min(left, kMaximumCopy), done);
  return done;
}

}  // namespace ckptfs::fs
