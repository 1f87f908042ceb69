#include "fs/open/open_modes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace ckptfs::fs {

bool OpenModes::must_be_served(int flags, const meta::InodeRecord& record, bool short_of_space) const {
  // DeepSpeed reads with O_DIRECT into unaligned memory and ignores the EINVAL.
  if ((flags & O_DIRECT) != 0 && odirect == OdirectOption::safe && alignment.harmful()) return true;
  if (!opens_for_writing(flags)) return false;
  // Under passthrough nobody but the writer would see its ENOSPC, and DeepSpeed does not look.
  if ((record.flags & meta::kSwap) != 0 && short_of_space) return true;
  // Under passthrough the kernel leaves these bits to a daemon that does not see the write.
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
