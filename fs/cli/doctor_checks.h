// What `ckptfs doctor` looks at, one function a thing. They read, and try out on scratch files in `folder`.
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
// Of a virtual machine: how its processors idle (the driver's name), and for how long they poll before they halt; pure.
Check check_wake_ups(const std::string& idle_driver, const std::string& polled_ns);
Check check_wake_ups();

// The file system of `folder`, its alignment, and what an image would need where a store cannot stand on it directly.
std::vector<Check> check_folder(const std::string& folder);

}  // namespace ckptfs::fs::cli
