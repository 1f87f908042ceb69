#include "fs/cli/mount_options.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

#include "fs/control/http_server.h"
#include "io/duration.h"
#include "io/text.h"

namespace ckptfs::fs::cli {

const char* const kMountOptions =
    "passthrough=auto|on|off, odirect=safe|raw, adopt=on|off, ro, noexec, show_views, allow_other, uid=N, gid=N, "
    "quiet=30s, scrub=14d, "
    "http=ADDRESS:PORT, http_token=FILE";

namespace {

// Options of mount(8) itself, options that it adds by default, and options that change nothing here: set-user-ID
// programs and device files never count, and access times are those of the store's own file system.
constexpr std::array kIgnored{"defaults", "auto",       "noauto",      "nofail",        "_netdev",  "user",
                              "users",    "nouser",     "owner",       "dev",           "nodev",    "suid",
                              "nosuid",   "async",      "atime",       "noatime",       "diratime", "nodiratime",
                              "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime"};

Error bad(const std::string& option) {
  return Error(EINVAL, "-o " + option + ": not understood; the options are " + kMountOptions);
}

Result<uint32_t> number(const std::string& option, const std::string& text) {
  const auto value = io::parse_number<uint32_t>(text);
  return value ? Result<uint32_t>(*value) : bad(option);
}

Result<unsigned> seconds(const std::string& option, const std::string& text) {
  const auto duration = io::parse_duration(text);
  if (!duration) return bad(option);
  return static_cast<unsigned>(duration.value().count());
}

Result<> apply_option(ParsedOptions& parsed, const std::string& option) {
  const size_t equals = option.find('=');
  const std::string name = option.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
  if (option == "passthrough=auto") {
    parsed.passthrough = PassthroughOption::automatic;
  } else if (option == "passthrough=on") {
    parsed.passthrough = PassthroughOption::on;
  } else if (option == "passthrough=off") {
    parsed.passthrough = PassthroughOption::off;
  } else if (option == "odirect=safe") {
    parsed.odirect = OdirectOption::safe;
  } else if (option == "odirect=raw") {
    parsed.odirect = OdirectOption::raw;
  } else if (option == "adopt=on") {
    parsed.adopt = true;
  } else if (option == "adopt=off") {
    parsed.adopt = false;
  } else if (option == "show_views") {
    parsed.show_views = true;
  } else if (option == "ro" || option == "rw") {
    parsed.read_only = option == "ro";
  } else if (option == "exec" || option == "noexec") {
    parsed.no_exec = option == "noexec";
  } else if (option == "remount") {
    return Error(EINVAL,
                 "-o remount: a daemon keeps the options that it was started with; umount, and mount again with "
                 "others. To let users only read for a while: mount -o remount,bind,ro MOUNTPOINT");
  } else if (option == "allow_other") {
    parsed.allow_other = true;
  } else if (name == "uid") {
    TRY_ASSIGN(parsed.uid, number(option, value));
  } else if (name == "gid") {
    TRY_ASSIGN(parsed.gid, number(option, value));
  } else if (name == "quiet") {
    TRY_ASSIGN(parsed.quiet_seconds, seconds(option, value));
  } else if (name == "scrub") {
    TRY_ASSIGN(parsed.scrub_seconds, seconds(option, value));
  } else if (name == "http") {
    TRY(check_http_address(value));
    parsed.http = value;
  } else if (name == "http_token") {
    if (value.empty()) return bad(option);
    parsed.http_token = value;
  } else if (!is_ignored_mount_option(option)) {
    return bad(option);
  }
  return success();
}

}  // namespace

bool is_ignored_mount_option(const std::string& option) {
  return option.empty() || option.starts_with("x-") || option.starts_with("comment=") ||
         std::find(kIgnored.begin(), kIgnored.end(), option) != kIgnored.end();
}

Result<ParsedOptions> parse_mount_options(const std::vector<std::string>& lists) {
  ParsedOptions parsed;
  for (const std::string& list : lists) {
    std::istringstream stream(list);
    for (std::string option; std::getline(stream, option, ',');) TRY(apply_option(parsed, option));
  }
  return parsed;
}

// "a=x|y, b, c=N" becomes a=x, a=y, b, c=
std::vector<std::string> mount_option_words() {
  std::vector<std::string> words;
  std::istringstream list(kMountOptions);
  for (std::string option; list >> std::ws && std::getline(list, option, ',');) {
    const size_t equals = option.find('=');
    const std::string name = option.substr(0, equals == std::string::npos ? equals : equals + 1);
    if (option.find('|') == std::string::npos) {
      words.push_back(name);
      continue;
    }
    std::istringstream values(option.substr(equals + 1));
    for (std::string value; std::getline(values, value, '|');) words.push_back(name + value);
  }
  return words;
}

namespace {

bool is_address(const std::string& argument) {
  return argument.starts_with("s3://") || argument.starts_with("file://");
}

// Of `ckptfs mount ...`.
std::vector<std::string> as_remote(std::vector<std::string> arguments) {
  if (std::ranges::any_of(arguments, is_address)) arguments.insert(arguments.begin() + 1, "remote");
  return arguments;
}

}  // namespace

std::vector<std::string> normalize_arguments(std::vector<std::string> arguments) {
  if (arguments.empty()) return arguments;
  const std::string program = std::filesystem::path(arguments[0]).filename();
  if (program.starts_with("mount.")) {
    std::vector<std::string> kept{"ckptfs", "mount"};
    for (size_t i = 1; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i];
      const bool flags =
          argument.size() > 1 && argument[0] == '-' && argument.find_first_not_of("snv", 1) == std::string::npos;
      if (flags) continue;
      if (argument == "-t") {
        ++i;
        continue;
      }
      kept.push_back(argument);
    }
    return as_remote(std::move(kept));
  }
  if (arguments.size() < 2 || (!arguments[1].starts_with("/") && !is_address(arguments[1]))) return arguments;
  arguments.insert(arguments.begin() + 1, "mount");
  return as_remote(std::move(arguments));
}

}  // namespace ckptfs::fs::cli
