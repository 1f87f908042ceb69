#include "fs/views/writers.h"

#include "io/lease.h"

namespace ckptfs::fs::views {

Result<Writers> writers_of(const OpenFileTable& files, InodeNumber inode, int blob) {
  const OpenFileTable::Writers counted = files.writers_of(inode);
  Writers writers;
  if (!counted.any) writers.changed = counted.changed;
  writers.writing = counted.any && !counted.past_daemon;
  writers.closing = counted.closing;
  if (!writers.writing) {
    TRY_ASSIGN(writers.writing, io::has_writer(blob));
  }
  return writers;
}

}  // namespace ckptfs::fs::views
