#include "gpu/mount_client.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/control_message.h"

namespace ckptfs::gpu {

using nlohmann::json;

Result<std::optional<MountClient>> MountClient::of(const std::string& path) {
  TRY_ASSIGN(const auto mounts, io::mount_table());
  const auto mount = io::mount_of(mounts, path);
  if (!mount || !io::is_ckptfs(*mount)) return std::optional<MountClient>();
  return std::optional(MountClient(*mount));
}

Result<std::vector<Result<BlobOfFile>>> MountClient::blobs(const std::vector<std::string>& paths, bool write) const {
  json inside = json::array();
  for (const std::string& path : paths) inside.push_back(io::path_inside(mount_, path));
  TRY_ASSIGN(auto reply, io::ask_mount_for_files(mount_.mountpoint, "blobs", {{"paths", inside}, {"write", write}}));
  std::vector<Result<BlobOfFile>> found;
  size_t next = 0;
  for (const json& file : reply.result.value("files", json::array())) {
    if (file.contains("errno")) {
      found.emplace_back(Error(file.value("errno", EIO), file.value("error", std::string())));
    } else if (next < reply.descriptors.size()) {
      found.emplace_back(BlobOfFile{file.value("inode", uint64_t{0}), std::move(reply.descriptors[next++])});
    }
  }
  if (found.size() != paths.size()) {
    return Error(EBADMSG, "the daemon's answer is not what this version of ckptfs understands");
  }
  return found;
}

Result<std::vector<Result<BlobOfFile>>> MountClient::blobs_to_read(const std::vector<std::string>& paths) const {
  return blobs(paths, false);
}

Result<io::Fd> MountClient::blob_to_write(const std::string& path) const {
  TRY_ASSIGN(auto only, blobs({path}, true));
  TRY(only.front());
  return std::move(only.front()).value().blob;
}

Result<std::string> MountClient::begin(const std::string& series, const std::string& tag,
                                       const std::string& attempt) const {
  TRY_ASSIGN(const json reply,
             io::ask_mount(mount_.mountpoint, "begin",
                           {{"series", io::path_inside(mount_, series)}, {"tag", tag}, {"attempt", attempt}}));
  const std::string path = reply.value("path", std::string());
  return series + "/" + path.substr(path.rfind('/') + 1);
}

Result<> MountClient::freeze(const std::vector<std::string>& paths) const {
  constexpr ptrdiff_t kAtOnce = 128;  // a request's length is limited
  for (auto at = paths.begin(); at != paths.end();) {
    const auto end = at + std::min(paths.end() - at, kAtOnce);
    json inside = json::array();
    for (; at != end; ++at) inside.push_back(io::path_inside(mount_, *at));
    TRY(io::ask_mount(mount_.mountpoint, "freeze", {{"paths", inside}}));
  }
  return success();
}

Result<std::optional<std::string>> MountClient::commit(const std::string& folder, const std::string& tag,
                                                       unsigned world_size, bool seal) const {
  TRY_ASSIGN(
      const json reply,
      io::ask_mount(
          mount_.mountpoint, "commit",
          {{"path", io::path_inside(mount_, folder)}, {"tag", tag}, {"world_size", world_size}, {"seal", seal}}));
  if (reply.contains("missing")) return std::optional(reply.value("reason", std::string("ranks are missing")));
  return std::optional<std::string>();
}

Result<> MountClient::loaded(const std::string& path, const meta::formats::RankTimes& times) const {
  TRY(io::ask_mount(mount_.mountpoint, "loaded",
                    {{"path", io::path_inside(mount_, path)},
                     {"slowest", times.slowest},
                     {"host", times.host},
                     {"seconds", times.seconds},
                     {"stages", times.longest}}));
  return success();
}

}  // namespace ckptfs::gpu
