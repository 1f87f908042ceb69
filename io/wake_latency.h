// How long an idle processor takes to wake. One that has halted takes 30 us where a hypervisor has to start it again,
// and more from a deep C-state; who asks for one thing at a time waits for two of them each time. While this is held
// they do not halt, or not deeply, which takes power: the kernel's PM QoS (Documentation/power/pm_qos_interface), as
// /dev/cpu_dma_latency, which ends with its descriptor, however the process ends.
//
// Thread safety: none; external.
#pragma once

#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::io {

class WakeLatency {
 public:
  bool is_held() const { return static_cast<bool>(held_); }
  // ENOENT, EACCES: not on this machine, or not in this container.
  Result<> hold();
  void let_go() { held_.reset(); }

 private:
  Fd held_;
};

}  // namespace ckptfs::io
