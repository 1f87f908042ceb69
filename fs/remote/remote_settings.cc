#include "fs/remote/remote_settings.h"

#include <nlohmann/json.hpp>

#include "io/host.h"
#include "io/json.h"
#include "meta/tree/tree.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

constexpr const char* kRemoteXattr = "user.ckptfs.remote";
constexpr uint32_t kMostSlots = 65536;

}  // namespace

json to_json(const io::S3Settings& settings) {
  return {{"endpoint", settings.endpoint},
          {"region", settings.region},
          {"profile", settings.profile},
          {"authorities", settings.authorities},
          {"path_style", settings.path_style}};
}

json to_json(const RemoteSettings& settings) {
  json record = to_json(settings.s3);
  record.update({{"url", settings.url},
                 {"slot", settings.slot},
                 {"slots", settings.slots},
                 {"upload_limit", settings.upload_limit}});
  return record;
}

Result<RemoteSettings> remote_settings_from(const json& record) {
  RemoteSettings settings;
  try {
    settings.url = record.at("url").get<std::string>();
    settings.slot = record.value("slot", uint32_t{0});
    settings.slots = record.value("slots", uint32_t{1});
    settings.upload_limit = record.value("upload_limit", uint64_t{0});
    settings.claim = record.value("claim", "");
    settings.s3.endpoint = record.value("endpoint", "");
    settings.s3.region = record.value("region", "");
    settings.s3.profile = record.value("profile", "");
    settings.s3.authorities = record.value("authorities", "");
    settings.s3.path_style = record.value("path_style", false);
  } catch (const nlohmann::json::exception& error) {
    return Error(EINVAL, std::string("the settings of the remote: ") + error.what());
  }
  if (settings.slots == 0 || settings.slots > kMostSlots || settings.slot >= settings.slots) {
    return Error(EINVAL, "a slot is I/N, with I from 0 to N-1: 0/2 and 1/2 for two nodes");
  }
  return settings;
}

std::string mount_name(const meta::Store& store, meta::InodeNumber series) {
  return store.id() + "/" + std::to_string(series) + "@" + io::host_name() + ":" + store.folder();
}

Result<std::optional<RemoteSettings>> remote_of(const meta::Store& store, meta::InodeNumber series) {
  TRY_ASSIGN(const auto text, none_if_gone(store.index().xattr(series, kRemoteXattr)));
  if (!text) return std::optional<RemoteSettings>();
  TRY_ASSIGN(const json record, io::parse_json(*text, {}));
  TRY_ASSIGN(RemoteSettings settings, remote_settings_from(record));
  return std::optional(std::move(settings));
}

Result<> set_remote(meta::Store& store, meta::InodeNumber series, const std::optional<RemoteSettings>& settings) {
  meta::Tree::Change change = store.tree().begin();
  TRY_ASSIGN(meta::InodeRecord record, store.index().inode(series));
  if (record.nlink == 0) return Error(ENOENT);
  if (settings) {
    record.flags |= meta::kSeries | meta::kPushed;
    json stored = to_json(*settings);
    stored["claim"] = settings->claim;
    change.batch.put_xattr(series, kRemoteXattr, stored.dump());
  } else {
    record.flags &= ~meta::kPushed;
    change.batch.erase_xattr(series, kRemoteXattr);
  }
  change.batch.put(series, record);
  TRY(store.tree().commit(std::move(change)));
  return store.tree().sync();
}

}  // namespace ckptfs::fs
