// The checks of `ckptfs doctor` on what was set up on this machine: /etc/fstab, the settings of the service, and the
// mounts that are there. They only read.
#pragma once

#include <string>
#include <vector>

#include "fs/cli/doctor_checks.h"

namespace ckptfs::fs::cli {

// A check for each ckptfs mount: does its daemon answer?
std::vector<Check> check_mounts();
// A check for each ckptfs line in a file like /etc/fstab: its options, its folders, and the program that mount(8) runs.
std::vector<Check> check_fstab(const std::string& path);
// A check for each settings file of the service (scripts/packaging/ckptfs@.service) in a folder like /etc/ckptfs.
std::vector<Check> check_services(const std::string& folder);

}  // namespace ckptfs::fs::cli
