// What a remote mount is started with. Plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "io/objects/s3_settings.h"

namespace ckptfs::fs::remote_mount {

struct RemoteMountOptions {
  std::string url;  // s3://BUCKET/PREFIX or file:///FOLDER
  io::S3Settings s3;
  std::string mountpoint;
  std::string cache;  // a folder; empty: none
  uint64_t cache_size = uint64_t{100} << 30;
  std::chrono::milliseconds time{60'000};
  bool for_others = true;
  bool no_exec = false;
  std::function<void()> before_mount;  // called by start() before the kernel mounts anything
};

}  // namespace ckptfs::fs::remote_mount
