#include "fs/open/backing_ids.h"

#include "io/log.h"

namespace ckptfs::fs {

Result<int> BackingIds::begin(int descriptor) const {
  if (!modes_.passthrough) return 0;
  Result<int> id = kernel_.open_backing(descriptor);
  if (!id) {
    add(counters_.passthrough_fallbacks);
    log::warn("{}; the file is served by the daemon until its last close", id.error().message());
  }
  return id;
}

void BackingIds::end(int backing_id) const {
  if (const auto closed = kernel_.close_backing(backing_id); !closed) {
    log::error("{} ({})", closed.error().message(), backing_id);
  }
}

}  // namespace ckptfs::fs
