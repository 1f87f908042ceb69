// What `ckptfs doctor` looks at of what was set up on this machine: /etc/fstab, the settings of the service, and the
// mounts that are there. Reads only.
#pragma once

#include <string>
#include <vector>

#include "fs/cli/doctor_checks.h"

namespace ckptfs::fs::cli {

// A check for each ckptfs mount: does its daemon answer?
std::vector<Check> check_mounts();
// A check for each line of ckptfs in a file like /etc/fstab: options, folders, and what mount(8) runs for it.
std::vector<Check> check_fstab(const std::string& path);
// A check for each settings file of the service (scripts/packaging/ckptfs@.service) in a folder like /etc/ckptfs.
std::vector<Check> check_services(const std::string& folder);

}  // namespace ckptfs::fs::cli
