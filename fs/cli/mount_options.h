// The comma lists behind `ckptfs mount -o`. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "fs/base/mount_options.h"
#include "io/result.h"

namespace ckptfs::fs::cli {

struct ParsedOptions {
  PassthroughOption passthrough = PassthroughOption::automatic;
  OdirectOption odirect = OdirectOption::safe;
  std::optional<uint32_t> uid, gid;
  unsigned quiet_seconds = 30;
  unsigned scrub_seconds = 14 * 86400;
  bool adopt = true;
  bool show_views = false;
  bool allow_other = false;
  bool read_only = false;
  bool no_exec = false;
  std::string http;        // address and port; empty: none
  std::string http_token;  // the file that has the token
};

// EINVAL, in words that name the known options, for one that is unknown or has a bad value. Later ones win. What
// mount(8) and fstab pass of their own (rw, defaults, nofail, _netdev, x-*, ...) is accepted and ignored.
Result<ParsedOptions> parse_mount_options(const std::vector<std::string>& lists);

// What can stand in such a list, as the error and --help show it, and word by word, for completion.
extern const char* const kMountOptions;
std::vector<std::string> mount_option_words();

// `mount -t fuse.ckptfs` and fstab do not know the subcommand: mount.fuse runs `ckptfs STORE MOUNTPOINT -o ...`, and
// mount(8) `mount.ckptfs STORE MOUNTPOINT [-sfnv] [-t TYPE] -o ...`. Both become `ckptfs mount ...`; anything else
// stays as it is. `arguments` is argv.
std::vector<std::string> normalize_arguments(std::vector<std::string> arguments);

}  // namespace ckptfs::fs::cli
