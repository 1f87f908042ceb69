#include "gpu/open_source.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "gpu/folder_files.h"
#include "gpu/folder_source.h"
#include "gpu/remote_source.h"
#include "io/control_message.h"
#include "io/log.h"
#include "io/mount_table.h"
#include "meta/remote/address.h"

namespace ckptfs::gpu {
namespace {

using meta::remote::StepAddress;
using nlohmann::json;
using OpenedSource = Result<std::unique_ptr<StepSource>>;

// The step whose folder in a remote mount this is: /TAG or /@I/TAG. Nothing: it is none.
std::optional<StepAddress> step_in_mount(const io::MountEntry& mount, const std::string& path) {
  if (!io::is_ckptfs(mount) || !meta::remote::is_remote_address(mount.source)) return std::nullopt;
  std::string url = mount.source;
  while (url.ends_with('/')) url.pop_back();
  auto address = meta::remote::split_step(url + io::path_inside(mount, path));
  if (!address || address.value().url != url || address.value().step == "views") return std::nullopt;
  return std::move(address).value();
}

// Of S3, as the mount was told.
Result<io::S3Settings> settings_of(const io::MountEntry& mount) {
  TRY_ASSIGN(const json status, io::ask_mount(mount.mountpoint, "status", json::object()));
  const auto found = status.find("remote");
  if (found == status.end() || !found->is_object()) return Error(EBADMSG, "its status does not tell of a remote");
  const auto text = [&](const char* name) {
    const auto value = found->find(name);
    return value != found->end() && value->is_string() ? value->get<std::string>() : std::string();
  };
  const auto path_style = found->find("path_style");
  return io::S3Settings{text("endpoint"), text("region"), text("profile"), text("authorities"),
                        path_style != found->end() && path_style->is_boolean() && path_style->get<bool>()};
}

OpenedSource open_behind(const io::MountEntry& mount, const StepAddress& address, const RemoteWait& wait) {
  if (!io::is_trusted(mount, ::geteuid())) return Error(EPERM, "another user has mounted it");
  io::S3Settings settings;
  if (meta::remote::is_in_s3(address.url)) {
    TRY_ASSIGN(settings, settings_of(mount));
  }
  return RemoteSource::open(address, settings, wait);
}

}  // namespace

OpenedSource open_source(const std::string& path, const RemoteWait& wait) {
  if (meta::remote::is_remote_address(path)) {
    TRY_ASSIGN(const StepAddress address, meta::remote::split_step(path));
    return RemoteSource::open(address, {}, wait);
  }
  TRY_ASSIGN(std::string real, real_path(path));
  TRY_ASSIGN(const auto mounts, io::mount_table());
  const auto mount = io::mount_of(mounts, real);
  if (const auto step = mount ? step_in_mount(*mount, real) : std::nullopt) {
    auto opened = open_behind(*mount, *step, wait);
    if (opened || opened.error().errno_value() == ECANCELED) return opened;
    log::warn("{}: it is read through the mount, not from {}: {}", real, mount->source, opened.error().message());
  }
  return FolderSource::open(std::move(real));
}

}  // namespace ckptfs::gpu
