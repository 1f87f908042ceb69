// Limits how long an idle processor takes to wake. A processor that has halted takes 30 us to wake if a hypervisor has
// to start it again, and more from a deep C-state. A program that sends one request at a time waits for two such
// wake-ups per request. While the limit is held, the processors do not halt, or not deeply, which costs power. It uses
// the kernel's PM QoS (Documentation/power/pm_qos_interface) through /dev/cpu_dma_latency. The kernel ends the limit
// when the descriptor is closed, however the process ends.
//
// Thread safety: none; the caller must lock.
#pragma once

#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::io {

class WakeLatency {
 public:
  bool is_held() const { return static_cast<bool>(held_); }
  // Fails with ENOENT or EACCES if this machine or container does not allow it.
  Result<> hold();
  void release() { held_.reset(); }

 private:
  Fd held_;
};

}  // namespace ckptfs::io
