#include "fs/control/blob_commands.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "fs/control/commands.h"
#include "fs/filesystem.h"
#include "fs/views/files_of_step.h"
#include "io/lease.h"
#include "meta/formats/manifest.h"
#include "meta/names.h"
#include "meta/partial.h"
#include "meta/steps.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

// A close reaches the daemon behind the call that made it.
constexpr auto kCloseWait = std::chrono::seconds(5);
constexpr auto kCloseLook = std::chrono::milliseconds(1);

struct HandedOut {
  meta::InodeNumber inode = 0;
  io::Fd blob;
};

Result<HandedOut> hand_out(Filesystem& fs, const Credentials& who, const std::string& path, bool writing) {
  TRY_ASSIGN(const meta::InodeNumber inode, resolve_as(fs.tree, who, path, writing ? kWrite : kRead));
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(inode));
  if (!record.is_regular()) return Error(EINVAL, path + ": it is no regular file");
  const bool written = fs.files.open_for_writing(inode);
  if (writing && !written) return Error(EBADF, path + ": open it for writing through the mount first, and keep it so");
  if (!writing && written) return Error(EBUSY, path + ": somebody has it open for writing");
  TRY(fs.adoptions.cut(inode));
  TRY_ASSIGN(io::Fd blob, fs.tree.open_blob(inode, writing ? O_RDWR : O_RDONLY));
  if (writing) fs.files.changes(inode);
  return HandedOut{inode, std::move(blob)};
}

Result<io::ControlReply> blobs(Filesystem& fs, const Peer& peer, const json& arguments) {
  const auto paths = arguments.at("paths").get<std::vector<std::string>>();
  const bool writing = arguments.value("write", false);
  if (paths.size() > io::kMaximumDescriptors) {
    return Error(E2BIG, "at most " + std::to_string(io::kMaximumDescriptors) + " files a request");
  }
  io::ControlReply reply;
  json files = json::array();
  for (const std::string& path : paths) {
    auto handed_out = hand_out(fs, peer.credentials, path, writing);
    if (!handed_out) {
      const Error& error = handed_out.error();
      files.push_back({{"errno", error.errno_value()}, {"error", error.message()}});
      continue;
    }
    files.push_back({{"inode", handed_out.value().inode}});
    reply.descriptors.push_back(std::move(handed_out.value().blob));
  }
  reply.result = {{"files", std::move(files)}};
  return reply;
}

Result<json> begin(Filesystem& fs, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const meta::InodeNumber series,
             resolve_as(fs.tree, peer.credentials, arguments.at("series").get<std::string>(), kWrite | kSearch));
  const meta::Caller caller{peer.credentials.uid, peer.credentials.gid, peer.pid};
  TRY_ASSIGN(const meta::InodeNumber folder,
             meta::begin_partial(fs.store, series, arguments.at("tag").get<std::string>(),
                                 arguments.at("attempt").get<std::string>(), caller));
  return json{{"path", fs.tree.path_of(folder)}};
}

// Until nobody can write to the file, or for a while: what is then still written to, freeze_files() deals with.
Result<> wait_for_writers(const Filesystem& fs, meta::InodeNumber file) {
  const auto end = std::chrono::steady_clock::now() + kCloseWait;
  while (std::chrono::steady_clock::now() < end) {
    if (!fs.files.open_for_writing(file)) {
      TRY_ASSIGN(const io::Fd blob, fs.tree.open_blob(file, O_RDONLY));
      TRY_ASSIGN(const bool written, io::has_writer(blob.get()));
      if (!written) return success();
    }
    std::this_thread::sleep_for(kCloseLook);
  }
  return success();
}

Result<json> freeze(Filesystem& fs, const Peer& peer, const json& arguments) {
  std::vector<meta::InodeNumber> files;
  for (const auto& path : arguments.at("paths").get<std::vector<std::string>>()) {
    TRY_ASSIGN(const meta::InodeNumber file, resolve_as(fs.tree, peer.credentials, path, kWrite));
    TRY(wait_for_writers(fs, file));
    files.push_back(file);
  }
  TRY(meta::freeze_files(fs.store, files));
  for (const meta::InodeNumber file : files) fs.files.invalidate(file);
  return json::object();
}

// The owner of both, or root.
Result<> may_commit(const meta::Tree& tree, const Credentials& who, meta::InodeNumber partial) {
  TRY_ASSIGN(const meta::InodeRecord record, tree.inode(partial));
  if (who.uid == 0 || who.uid == record.uid) return success();
  return Error(EPERM, tree.path_of(partial) + ": only who began it may commit it");
}

Result<json> commit(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string path = arguments.at("path").get<std::string>();
  TRY_ASSIGN(const meta::InodeNumber partial, resolve_as(fs.tree, peer.credentials, path, kWrite | kSearch));
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(partial));
  TRY(resolve_as(fs.tree, peer.credentials, fs.tree.path_of(record.parent), kWrite | kSearch));
  TRY(may_commit(fs.tree, peer.credentials, partial));
  const std::function<bool(meta::InodeNumber)> is_written = [&fs](meta::InodeNumber file) {
    return fs.files.open_for_writing(file);
  };
  views::FilesOfStep files(fs.store, is_written);
  TRY(files.collect(partial));
  const auto attendance = meta::formats::check_manifests(files, arguments.at("world_size").get<unsigned>());
  if (!attendance.complete()) return json{{"missing", attendance.missing}, {"reason", attendance.reason}};
  TRY_ASSIGN(
      const meta::Committed committed,
      meta::commit_partial(fs.store, partial, arguments.at("tag").get<std::string>(), arguments.value("seal", true)));
  for (const meta::Dropped& dropped : committed.dropped) fs.dropped(dropped);
  fs.rotation.wake();
  fs.notifications.wait_until_told(std::chrono::seconds(2));
  return json{{"step", fs.tree.path_of(committed.step)}};
}

}  // namespace

void add_blob_commands(ControlServer& server, Filesystem& fs) {
  server.add_for_files("blobs", [&fs](const Peer& peer, const json& arguments) { return blobs(fs, peer, arguments); });
  server.add("begin", ControlServer::Pace::slow,
             [&fs](const Peer& peer, const json& arguments) { return begin(fs, peer, arguments); });
  server.add("freeze", ControlServer::Pace::slow,
             [&fs](const Peer& peer, const json& arguments) { return freeze(fs, peer, arguments); });
  server.add("commit", ControlServer::Pace::slow,
             [&fs](const Peer& peer, const json& arguments) { return commit(fs, peer, arguments); });
}

}  // namespace ckptfs::fs
