#include "meta/remote/address.h"

#include <unistd.h>

#include <cerrno>

#include "io/printable.h"
#include "io/text.h"

namespace ckptfs::meta::remote {
namespace {

constexpr std::string_view kS3Scheme = "s3://", kFolderScheme = "file://";

// "@1" -> 1
std::optional<uint32_t> slot_of_name(std::string_view name) {
  return name.starts_with('@') ? io::parse_number<uint32_t>(name.substr(1)) : std::nullopt;
}

}  // namespace

Result<StepAddress> split_step(const std::string& address) {
  std::string_view rest = address;
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t scheme = rest.find("://");
  // Takes the last name away; empty if there is none.
  const auto take_name = [&]() -> std::string_view {
    const size_t slash = rest.rfind('/');
    if (scheme == std::string_view::npos || slash == std::string_view::npos || slash <= scheme + 2) return {};
    const std::string_view name = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
    return name;
  };
  const std::string_view step = take_name();
  if (step.empty()) {
    return Error(EINVAL, io::printable(address) +
                             ": it names no step; it has the form URL/TAG, as in s3://bucket/run7/global_step100");
  }
  const std::string_view whole = rest;
  const std::optional<uint32_t> slot = slot_of_name(take_name());
  return StepAddress{std::string(slot ? rest : whole), std::string(step), slot};
}

bool is_remote_address(std::string_view address) { return is_in_s3(address) || address.starts_with(kFolderScheme); }

bool is_in_s3(std::string_view address) { return address.starts_with(kS3Scheme); }

bool has_secret(std::string_view address) {
  const size_t scheme = address.find("://");
  if (scheme == std::string_view::npos || address.starts_with(kFolderScheme)) return false;
  return address.substr(0, address.find('/', scheme + 3)).find('@') != std::string_view::npos;
}

Result<> refuse_secrets(const std::string& address, const char* what) {
  if (!has_secret(address)) return success();
  return Error(EINVAL, std::string(what) + " has a user or a secret in it, which `ps` shows to everybody: use the " +
                           "environment (AWS_ACCESS_KEY_ID) or a profile, and change that secret");
}

Result<> check_folder_of(const std::string& url) {
  if (!url.starts_with(kFolderScheme)) return success();
  const std::string folder = url.substr(kFolderScheme.size());
  if (!folder.starts_with('/') || ::access(folder.c_str(), F_OK) == 0) return success();
  const Error why = last_error();
  if (why.errno_value() != ENOENT && why.errno_value() != ENOTDIR) return with_name(folder, why);
  return Error(ENOENT, "there is no folder " + folder + ": mount its file system, or make the folder if it is to be " +
                           "a new remote");
}

}  // namespace ckptfs::meta::remote
