#include "fs/open/open_modes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace ckptfs::fs {

// Cases 1 to 3 of the list in open_modes.h.
bool OpenModes::must_be_served(int flags, const meta::InodeRecord& record, bool short_of_space) const {
  if ((flags & O_DIRECT) != 0 && odirect == OdirectOption::safe && alignment.harmful()) return true;
  if (!opens_for_writing(flags)) return false;
  if ((record.flags & meta::kSwap) != 0 && short_of_space) return true;
  return has_privileges(record.mode);
}

io::DirectAlignment OpenModes::own_alignment() const {
  constexpr size_t kSector = 512;
  return {std::max(alignment.memory, kSector), std::max(alignment.offset, kSector)};
}

bool has_privileges(uint32_t mode) { return (mode & (S_ISUID | S_ISGID)) != 0; }

uint32_t without_privileges(uint32_t mode, bool in_group) {
  uint32_t result = mode & ~static_cast<uint32_t>(S_ISUID);
  if ((mode & S_IXGRP) != 0 || !in_group) result &= ~static_cast<uint32_t>(S_ISGID);
  return result;
}

}  // namespace ckptfs::fs
