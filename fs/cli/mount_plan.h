// The plan of `ckptfs mount`, checked before anything is changed.
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
  bool as_json = false;
  std::string image;  // a size; empty: no image is asked for
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

// EINVAL, in words: the command line alone shows that it is wrong (exit code 2).
Result<MountPlan> plan_mount(const MountArguments& arguments);
// What -o http= and http_token= say, with the token itself. EINVAL, in words.
Result<HttpOptions> plan_http(const ParsedOptions& options);
// ENOENT, in words: the folder is not there in which the store is to be.
Result<> check_place_of_store(const MountPlan& plan);
// EPERM, in words: this user cannot mount that.
Result<> check_user(const MountPlan& plan);
// Refuses nested paths. Nothing that the daemon opens may lie on its own mount, and the mount may not lie in the store.
// Pure.
Result<> check_nesting(const MountPlan& plan);
// Refuses a path that is no directory, or a live ckptfs mount already. Detaches a dead ckptfs mount, and says so.
Result<> clear_mountpoint(const std::string& mountpoint);

}  // namespace ckptfs::fs::cli
