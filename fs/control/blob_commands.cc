#include "fs/control/blob_commands.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "fs/open/walk.h"
#include "fs/ops/filesystem.h"
#include "fs/remote/fetched_step.h"
#include "fs/views/files_of_step.h"
#include "io/lease.h"
#include "meta/formats/manifest.h"
#include "meta/names.h"
#include "meta/steps/partial.h"
#include "meta/steps/seal.h"
#include "meta/steps/steps.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

using Clock = std::chrono::steady_clock;

// A close reaches the daemon after close() has returned, so requests wait for it. One request waits at most so long for
// all its files together, so that nobody can hold up an unmount.
constexpr auto kCloseWait = std::chrono::seconds(5);
constexpr auto kClosePoll = std::chrono::milliseconds(1);
constexpr auto kTold = std::chrono::seconds(2);  // the kernel is told of what came and went

struct HandedOut {
  meta::InodeNumber inode = 0;
  io::Fd blob;
};

Result<HandedOut> hand_out(Filesystem& fs, const Peer& peer, const std::string& path, bool writing) {
  TRY_ASSIGN(const meta::InodeNumber inode, resolve_as(fs.tree, peer.credentials, path, writing ? kWrite : kRead));
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(inode));
  if (!record.is_regular()) return Error(EINVAL, path + ": it is no regular file");
  if (!writing && !may_share(peer.credentials, record)) {  // the daemon would not see a clone from the descriptor
    return Error(EACCES, path + ": a swap file of another user's is read through the mount only");
  }
  const auto check_writers = [&]() -> Result<> {
    const bool written = fs.files.open_for_writing(inode);
    if (written == writing) return success();
    if (written) return Error(EBUSY, path + ": somebody has it open for writing");
    return Error(EBADF, path + ": open it for writing through the mount first, and keep it so");
  };
  TRY(check_writers());
  TRY_ASSIGN(io::Fd blob, fs.tree.open_blob(inode, writing ? O_WRONLY : O_RDONLY));
  TRY(check_writers());  // again, since whoever freezes the file closes the gate and then looks for writers
  if (writing) {
    TRY(fs.privileges.clear(inode, {peer.credentials.uid, peer.credentials.gid, peer.pid}));
    fs.files.changes(inode);
    fs.notifications.attributes_changed(inode);  // it may still use those of CREATE's answer
  }
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
    auto handed_out = hand_out(fs, peer, path, writing);
    if (!handed_out) {
      const Error& error = handed_out.error();
      files.push_back({{"errno", error.errno_value()}, {"error", error.message()}});
      continue;
    }
    files.push_back({{"inode", handed_out.value().inode}});
    reply.descriptors.push_back(std::move(handed_out.value().blob));
  }
  if (writing) fs.notifications.wait_until_told(kTold);
  reply.result = {{"files", std::move(files)}};
  return reply;
}

struct BegunAttempt {
  meta::InodeNumber series = 0, folder = 0;
  std::string path;
};

Result<BegunAttempt> begin_attempt(Filesystem& fs, const Peer& peer, const json& arguments, meta::Existing existing) {
  TRY_ASSIGN(const meta::InodeNumber series,
             resolve_as(fs.tree, peer.credentials, arguments.at("series").get<std::string>(), kWrite | kSearch));
  const meta::Caller caller{peer.credentials.uid, peer.credentials.gid, peer.pid};
  TRY_ASSIGN(const meta::InodeNumber folder,
             meta::begin_partial(fs.store, series, arguments.at("tag").get<std::string>(),
                                 arguments.at("attempt").get<std::string>(), caller, existing));
  return BegunAttempt{series, folder, fs.tree.path_of(folder)};
}

Result<json> begin(Filesystem& fs, const Peer& peer, const json& arguments) {
  const std::string attempt = arguments.at("attempt").get<std::string>();
  if (attempt.starts_with(meta::kFetchAttempt)) return Error(EINVAL, attempt + ": that is the name of a fetch");
  TRY_ASSIGN(const BegunAttempt begun, begin_attempt(fs, peer, arguments, meta::Existing::merge));
  return json{{"path", begun.path}};
}

// Waits until nobody can write to the file, until `end`, or until the mount ends. freeze_files() deals with a file that
// is still written to then.
Result<> wait_for_writers(const Filesystem& fs, meta::InodeNumber file, Clock::time_point end) {
  while (Clock::now() < end && !fs.leaving) {
    if (!fs.files.open_for_writing(file)) {
      TRY_ASSIGN(const io::Fd blob, fs.tree.open_blob(file, O_RDONLY));
      TRY_ASSIGN(const bool written, io::has_writer(blob.get()));
      if (!written) return success();
    }
    std::this_thread::sleep_for(kClosePoll);
  }
  return success();
}

// Checks that `folder` is an attempt to save a step, and that `who` began it or is root.
Result<> check_attempt_of(const meta::Tree& tree, const Credentials& who, meta::InodeNumber folder) {
  TRY_ASSIGN(const meta::InodeRecord record, tree.inode(folder));
  if (!record.is_dir() || !meta::is_partial_name(meta::name_of(tree, folder)))
    return Error(ENOENT, tree.path_of(folder) + ": it is no attempt to save a step");
  if (who.uid == 0 || who.uid == record.uid) return success();
  return Error(EPERM, tree.path_of(folder) + ": only who began it may do that");
}

Result<json> freeze(Filesystem& fs, const Peer& peer, const json& arguments) {
  const auto end = Clock::now() + kCloseWait;
  meta::InodeNumber folder = 0;
  std::vector<meta::InodeNumber> files;
  for (const auto& path : arguments.at("paths").get<std::vector<std::string>>()) {
    TRY_ASSIGN(const meta::InodeNumber in,
               resolve_as(fs.tree, peer.credentials, path.substr(0, path.rfind('/')), kWrite | kSearch));
    if (folder != 0 && folder != in) return Error(EINVAL, path + ": files of one attempt only are frozen together");
    folder = in;
    TRY(check_attempt_of(fs.tree, peer.credentials, folder));
    TRY_ASSIGN(const meta::InodeNumber file, resolve_as(fs.tree, peer.credentials, path, kWrite));
    files.push_back(file);
  }
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  for (const meta::InodeNumber file : files) TRY(wait_for_writers(fs, file, end));
  TRY(meta::freeze_files(fs.store, folder, files));
  for (const meta::InodeNumber file : files) fs.notifications.attributes_changed(file);
  return json::object();
}

// Waits for manifests that a rank has closed a moment ago, but not for other files that are still written to.
Result<> wait_for_manifests(const Filesystem& fs, meta::InodeNumber folder) {
  const auto end = Clock::now() + kCloseWait;
  TRY_ASSIGN(const auto entries, fs.tree.list(folder));
  for (const meta::DirectoryEntry& entry : entries) {
    if (entry.type == S_IFREG && meta::formats::is_manifest_name(entry.name)) {
      TRY(wait_for_writers(fs, entry.inode, end));
    }
  }
  return success();
}

Result<meta::formats::Attendance> attendance_of(Filesystem& fs, meta::InodeNumber partial, unsigned world_size) {
  const views::AskWriters ask_writers = [&fs](meta::InodeNumber file, int blob) {
    return views::writers_of(fs.files, file, blob);
  };
  TRY(wait_for_manifests(fs, partial));
  views::FilesOfStep files(fs.store, ask_writers, fs.leaving);
  TRY(files.collect(partial));
  auto attendance = meta::formats::check_manifests(files, world_size);
  if (files.short_of()) return *files.short_of();
  return attendance;
}

// The folder of an attempt that the caller may end.
Result<meta::InodeNumber> attempt_at(const Filesystem& fs, const Peer& peer, const std::string& path) {
  TRY_ASSIGN(const meta::InodeNumber partial, resolve_as(fs.tree, peer.credentials, path, kWrite | kSearch));
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(partial));
  TRY(reach_as(fs.tree, peer.credentials, record.parent, kWrite | kSearch));
  TRY(check_attempt_of(fs.tree, peer.credentials, partial));
  return partial;
}

Result<json> commit(Filesystem& fs, const Peer& peer, const json& arguments) {
  const auto world_size = arguments.at("world_size").get<int64_t>();
  if (world_size < 1 || world_size > meta::formats::kLargestWorld) {
    return Error(EINVAL, std::to_string(world_size) + " ranks there cannot be");
  }
  TRY_ASSIGN(const meta::InodeNumber partial, attempt_at(fs, peer, arguments.at("path").get<std::string>()));
  TRY_ASSIGN(const auto attendance, attendance_of(fs, partial, static_cast<unsigned>(world_size)));
  if (!attendance.complete()) return json{{"missing", attendance.missing}, {"reason", attendance.reason}};
  TRY_ASSIGN(const meta::Committed committed,
             meta::commit_partial(fs.store, partial, arguments.at("tag").get<std::string>()));
  fs.writers.names_changed();
  for (const meta::Dropped& dropped : committed.dropped) fs.dropped(dropped);
  if (committed.problem) return *committed.problem;
  if (arguments.value("seal", true) && !committed.is_part) TRY(fs.saver.seal(committed.step));
  fs.look_again();
  fs.notifications.wait_until_told(kTold);
  const std::string step = fs.tree.path_of(committed.step);
  if (attendance.times) fs.saves.moved_by_ranks(SaveHistory::Way::saved, {step, *attendance.times});
  return json{{"step", step}};
}

// Steps of the series whose files may hold what a new one will. They are compared, so that any will do: the last ones.
Result<std::vector<std::string>> lenders_in(Filesystem& fs, meta::InodeNumber series) {
  constexpr size_t kMostLenders = 2;
  TRY_ASSIGN(const auto steps, meta::list_steps(fs.store, series));
  std::vector<std::string> lenders;
  for (auto step = steps.rbegin(); step != steps.rend() && lenders.size() < kMostLenders; ++step) {
    if (!meta::is_partial_name(step->tag) && !step->record.being_removed) {
      lenders.push_back(step->series + "/" + step->tag);
    }
  }
  return lenders;
}

Result<json> fetch_begin(Filesystem& fs, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const BegunAttempt begun, begin_attempt(fs, peer, arguments, meta::Existing::refuse));
  TRY_ASSIGN(const std::vector<std::string> lenders, lenders_in(fs, begun.series));
  return json{{"path", begun.path}, {"inode", begun.folder}, {"lenders", lenders}};
}

// What the step's folder is to be. Only root may give it away.
Result<meta::AttributeChange> own_folder_from(const json& told, const meta::InodeRecord& now, const Peer& peer) {
  constexpr uint32_t kFolderBits = 03777;
  constexpr long kNanoseconds = 1'000'000'000;
  meta::AttributeChange change;
  change.uid = told.at("uid").get<uint32_t>();
  change.gid = told.at("gid").get<uint32_t>();
  change.mode = told.at("mode").get<uint32_t>() & kFolderBits;
  const auto [seconds, nanoseconds] = told.at("mtime").get<std::pair<int64_t, int64_t>>();
  if (nanoseconds < 0 || nanoseconds >= kNanoseconds) return Error(EINVAL, "the folder's time is none");
  change.mtime = timespec{seconds, nanoseconds};
  if (peer.credentials.uid == 0 || (*change.uid == now.uid && *change.gid == now.gid)) return change;
  return Error(EPERM, "only root may give the step to another user");
}

Result<json> fetch_commit(Filesystem& fs, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const FetchedStep fetched, fetched_step_from(arguments.at("fetched")));
  const std::string path = arguments.at("path").get<std::string>();
  TRY_ASSIGN(const meta::InodeNumber partial, attempt_at(fs, peer, path));
  if (partial != arguments.at("inode").get<meta::InodeNumber>()) {
    return Error(ENOENT, path + ": it is not the folder that was begun any more");
  }
  if (!meta::is_fetch_name(meta::name_of(fs.tree, partial))) return Error(EINVAL, path + ": it is no fetch");
  TRY_ASSIGN(const meta::InodeRecord record, fs.tree.inode(partial));
  TRY_ASSIGN(const meta::AttributeChange own, own_folder_from(arguments.at("folder"), record, peer));
  TRY(note_fetched(fs.store, partial, fetched));
  // Until here the folder was its maker's alone.
  TRY(fs.tree.change_attributes(partial, own));
  fs.notifications.attributes_changed(partial);
  TRY_ASSIGN(const meta::Committed committed,
             meta::commit_partial(fs.store, partial, fetched.tag, meta::Existing::refuse));
  fs.writers.names_changed();
  if (committed.problem) return *committed.problem;
  fs.look_again();
  fs.notifications.wait_until_told(kTold);
  return json{{"step", fs.tree.path_of(committed.step)}};
}

Result<json> loaded(Filesystem& fs, const Peer& peer, const json& arguments) {
  TRY_ASSIGN(const meta::InodeNumber inode,
             resolve_as(fs.tree, peer.credentials, arguments.at("path").get<std::string>(), kRead));
  meta::formats::RankTimes times;
  times.slowest = arguments.at("slowest").get<unsigned>();
  times.host = arguments.at("host").get<std::string>();
  times.seconds = arguments.at("seconds").get<double>();
  times.longest = arguments.at("stages").get<std::map<std::string, double>>();
  TRY(meta::formats::check_times(times));
  fs.saves.moved_by_ranks(SaveHistory::Way::loaded, {fs.tree.path_of(inode), std::move(times)});
  return json::object();
}

}  // namespace

void add_blob_commands(ControlServer& server, Filesystem& fs) {
  using Pace = ControlServer::Pace;
  server.add_for_files("blobs", [&fs](const Peer& peer, const json& arguments) { return blobs(fs, peer, arguments); });
  server.add("begin", Pace::slow, fs, begin);
  server.add("freeze", Pace::slow, fs, freeze);
  server.add("commit", Pace::slow, fs, commit);
  server.add("fetch_begin", Pace::slow, fs, fetch_begin);
  server.add("fetch_commit", Pace::slow, fs, fetch_commit);
  server.add("loaded", Pace::quick, fs, loaded);
}

}  // namespace ckptfs::fs
