// Addresses of remotes and of the committed steps in them, as users give them. Stateless; any thread.
//
//   s3://bucket/run7                      a remote; or file:///FOLDER
//   s3://bucket/run7/global_step100~2     its step "global_step100~2"
//   s3://bucket/run7/@1/global_step100    what slot 1 holds of the step "global_step100"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/result.h"

namespace ckptfs::meta::remote {

struct StepAddress {
  std::string url;  // of the remote
  std::string step;
  std::optional<uint32_t> slot;  // none: the union of all slots
};
// EINVAL, in words: no step is named.
Result<StepAddress> split_step(const std::string& address);

// Does it begin as the address of a remote does, and not as a path?
bool is_remote_address(std::string_view address);
bool is_in_s3(std::string_view address);

// "s3://KEY:SECRET@bucket/run7"
bool has_secret(std::string_view address);
// EINVAL if the address has a user or a secret in it; `what` names it.
Result<> refuse_secrets(const std::string& address, const char* what);

// ENOENT, in words: the remote is a folder, and that is not there. Its store would wait for its file system.
Result<> check_folder_of(const std::string& url);

}  // namespace ckptfs::meta::remote
