// Parses the comma lists behind `ckptfs mount -o`. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "fs/base/mount_options.h"
#include "io/result.h"

namespace ckptfs::fs::cli {

struct ParsedOptions : GivenOptions {
  bool allow_other = false;
  std::string http;        // address and port; empty: none
  std::string http_token;  // the file that contains the token
};

// Later options win. Options that mount(8) and fstab add of their own (rw, defaults, nofail, _netdev, x-*, ...) are
// ignored. EINVAL, in words that name the known options: an option is unknown or has a bad value.
Result<ParsedOptions> parse_mount_options(const std::vector<std::string>& lists);

// Is it an option that mount(8) or fstab adds, and that means nothing here?
bool is_ignored_mount_option(const std::string& option);

// The known options, as the error and --help show them, and word by word for completion.
extern const char* const kMountOptions;
std::vector<std::string> mount_option_words();

// `mount -t fuse.ckptfs` and fstab do not know the subcommand. mount.fuse runs `ckptfs STORE MOUNTPOINT -o ...`, and
// mount(8) runs `mount.ckptfs STORE MOUNTPOINT [-sfnv] [-t TYPE] -o ...`. Turns both into `ckptfs mount ...`, or, where
// the address of a remote stands for the store, into `ckptfs remote mount ...`, and leaves anything else as it is.
// `arguments` is argv.
std::vector<std::string> normalize_arguments(std::vector<std::string> arguments);

}  // namespace ckptfs::fs::cli
