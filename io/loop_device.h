// Loop devices: a file as a block device. Uses losetup; needs root. Stateless; not for concurrent use on one file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::io {

struct LoopDevice {
  std::string device;   // "/dev/loop0"
  std::string numbers;  // "MAJOR:MINOR", as the mount table has it
  bool direct = false;  // direct I/O to the file below
};

// The loop devices that stand on this file (by device and inode, whatever path they were given).
Result<std::vector<LoopDevice>> loops_of(const std::string& file);
// With direct I/O where the driver takes it (a fallback is logged), and this logical sector size.
Result<LoopDevice> attach_loop(const std::string& file, uint32_t sector);
// Returns once the device is detached; EBUSY where something still has it open after some seconds: the kernel then
// detaches it when the last user lets go. Detaching what is not attached is no error.
Result<> detach_loop(const std::string& device);
// Discards (fstrim, mount -o discard) are no longer passed on to the file, which they would make sparse.
Result<> refuse_discards(const std::string& device);

}  // namespace ckptfs::io
