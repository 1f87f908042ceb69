// What a series knows of its remote: kept with the series in the index, without any secret.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/objects/s3_settings.h"
#include "io/result.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

struct RemoteSettings {
  std::string url;
  uint32_t slot = 0;
  uint32_t slots = 1;
  uint64_t upload_limit = 0;  // bytes a second; 0: none
  std::string claim;          // meta::remote::SlotOwner::claim; empty: it was never added
  io::S3Settings s3;
};

nlohmann::json to_json(const io::S3Settings& settings);
// These, too.
nlohmann::json to_json(const RemoteSettings& settings);
// EINVAL, in words.
Result<RemoteSettings> remote_settings_from(const nlohmann::json& json);

// What a mount is called there: its store, the series, and where they lie, since a copy of the store has the same id.
std::string mount_name(const meta::Store& store, meta::InodeNumber series);

// None: the series has no remote.
Result<std::optional<RemoteSettings>> remote_of(const meta::Store& store, meta::InodeNumber series);
// None takes the remote away. Durable on return.
Result<> set_remote(meta::Store& store, meta::InodeNumber series, const std::optional<RemoteSettings>& settings);

}  // namespace ckptfs::fs
