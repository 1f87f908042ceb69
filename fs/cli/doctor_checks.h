// The checks of `ckptfs doctor`. They only read, and try out on scratch files in `folder`.
#pragma once

#include <string>
#include <vector>

#include "io/result.h"

namespace ckptfs::fs::cli {

enum class Verdict { ok, warn, fail };

struct Check {
  std::string name;
  Verdict verdict = Verdict::ok;
  std::string found;
  std::string advice;  // how to get what is missing; empty when ok
};

Check check_kernel(const std::string& release);   // "6.12.3-amd64"; pure
Check check_libfuse(const std::string& version);  // "3.17.2"; pure
Check check_fuse_device();
Check check_privileges();
Check check_page_limit();
// Loop devices are needed for images only. If nothing but an image will do here, their lack is a failure.
Check check_loop(bool needed);
// Of a virtual machine: the name of the driver by which its processors idle, and how long they poll before they halt.
// Pure.
Check check_wake_ups(const std::string& idle_driver, const std::string& polled_ns);
Check check_wake_ups();

// Checks the file system of `folder` and its alignment, and what an image needs. Without that a store can do only if it
// can lie on the file system directly.
std::vector<Check> check_folder(const std::string& folder);

}  // namespace ckptfs::fs::cli
