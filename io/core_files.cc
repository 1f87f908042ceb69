#include "io/core_files.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "io/log.h"
#include "io/result.h"

namespace ckptfs::io {
namespace {

constexpr std::array kSecretVariables{"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
                                      "AWS_CONTAINER_AUTHORIZATION_TOKEN"};

std::atomic<bool> is_process_ours{false};

}  // namespace

void allow_no_secret_in_core_files() {
  is_process_ours = true;
  if (std::ranges::any_of(kSecretVariables, [](const char* name) { return std::getenv(name) != nullptr; })) {
    expect_secret();
  }
}

void expect_secret() {
  if (!is_process_ours) return;
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) log::warn("PR_SET_DUMPABLE: {}", last_error().message());
}

}  // namespace ckptfs::io
