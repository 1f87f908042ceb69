// What `ckptfs mount` is going to do, checked before anything is changed.
#pragma once

#include <optional>
#include <string>

#include "fs/cli/mount_options.h"
#include "fs/control/http_server.h"
#include "io/mount_table.h"

namespace ckptfs::fs::cli {

using io::MountEntry;

// The command line as given.
struct MountArguments {
  std::string store;
  std::string mountpoint;
  bool foreground = false;
  std::string image;  // a size; empty: none asked for
  bool sparse = false;
  uint32_t sector = 512;
  std::vector<std::string> options;  // of -o
  std::string log;                   // empty: syslog
  std::string log_level = "info";
};

struct MountPlan {
  std::string store;       // absolute; what the user called the store
  std::string mountpoint;  // absolute
  std::optional<uint64_t> image_size;
  bool sparse = false;
  uint32_t sector = 512;
  ParsedOptions options;
  HttpOptions http;  // with the token itself
  bool foreground = false;
  std::string log;  // absolute, or empty
  std::string log_level;
};

// EINVAL in words: what only the command line can tell is wrong (exit code 2).
Result<MountPlan> plan_mount(const MountArguments& arguments);
// EPERM, in words, where this user cannot mount that.
Result<> check_user(const MountPlan& plan);
// Refuses nested paths: nothing that the daemon opens may lie on its own mount, nor the mount in the store. Pure.
Result<> check_nesting(const MountPlan& plan);
// Refuses what is no directory or a live ckptfs mount already; a dead ckptfs mount there is detached, and said so.
Result<> clear_mountpoint(const std::string& mountpoint);

}  // namespace ckptfs::fs::cli
