// Loop devices, which make a file a block device. Uses losetup; needs root. Stateless; not for concurrent use on one
// file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::io {

struct LoopDevice {
  std::string device;   // "/dev/loop0"
  std::string numbers;  // "MAJOR:MINOR", as in the mount table
  bool direct = false;  // direct I/O to the file
};

// Returns the loop devices that use this file. It is found by device and inode, whatever path they were made with.
Result<std::vector<LoopDevice>> loops_of(const std::string& file);
// Attaches the file with this logical sector size, and with direct I/O where the driver supports it. A fallback is
// logged.
Result<LoopDevice> attach_loop(const std::string& file, uint32_t sector);
// Returns once the device is detached. Fails with EBUSY if something still has it open after some seconds; the kernel
// then detaches it when its last user closes it. Detaching a device that is not attached is no error.
Result<> detach_loop(const std::string& device);
// Stops the device from passing discards (fstrim, mount -o discard) to the file, which they would make sparse.
Result<> refuse_discards(const std::string& device);

}  // namespace ckptfs::io
