#include "io/boot.h"

#include <time.h>

#include "io/fault.h"
#include "io/fd.h"

namespace ckptfs::io {

Result<std::string> boot_id() {
  if (const auto given = fault_value("boot_id")) return *given;
  TRY_ASSIGN(std::string id, read_file("/proc/sys/kernel/random/boot_id"));
  id.erase(id.find_last_not_of('\n') + 1);
  return id;
}

std::chrono::nanoseconds since_boot() {
  if (const auto given = fault_value("since_boot")) return std::chrono::seconds(std::stoll(*given));
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

}  // namespace ckptfs::io
