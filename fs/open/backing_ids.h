// Backing ids: files that the kernel reads and writes by itself, on a mount in passthrough mode.
//
// Thread safety: all of it.
#pragma once

#include "fs/base/counters.h"
#include "fs/kernel/kernel_channel.h"
#include "fs/open/open_modes.h"
#include "io/result.h"

namespace ckptfs::fs {

class BackingIds {
 public:
  BackingIds(const OpenModes& modes, const KernelChannel& kernel, Counters& counters)
      : modes_(modes), kernel_(kernel), counters_(counters) {}

  // Has the kernel read and write by itself what `descriptor` is of; the backing id to tell it when such a file is
  // opened, 0 where this mount has no passthrough. A refusal is counted and logged here.
  Result<int> begin(int descriptor) const;
  // No open file has this backing id any more.
  void end(int backing_id) const;

 private:
  const OpenModes& modes_;
  const KernelChannel& kernel_;
  Counters& counters_;
};

}  // namespace ckptfs::fs
