#include "fs/views/files_of_step.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>

#include "io/lease.h"
#include "meta/care/digests.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/step_names.h"
#include "meta/names.h"
#include "meta/steps/steps.h"
#include "meta/time.h"

namespace ckptfs::fs::views {

using meta::Attributes;

namespace {

constexpr std::chrono::milliseconds kTickPoll{1};
constexpr std::chrono::milliseconds kLongestTick{20};

// Could a change that happens now leave this time as it is? Files are stamped by a clock that advances in ticks.
bool is_of_this_tick(const timespec& time) {
  timespec tick{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &tick);
  const auto ahead = meta::wall_time(time) - meta::wall_time(tick);
  return ahead >= ahead.zero() && ahead < kLongestTick;  // beyond, the clock was set back
}

Result<struct stat> stat_after_its_tick(int blob) {
  for (;; std::this_thread::sleep_for(kTickPoll)) {
    TRY_ASSIGN(const struct stat st, io::stat_fd(blob));
    if (!is_of_this_tick(st.st_ctim)) return st;
  }
}

}  // namespace

Result<Writers> writers_of(const OpenFileTable& files, InodeNumber inode, int blob) {
  const OpenFileTable::Writers counted = files.writers_of(inode);
  Writers writers;
  if (!counted.any) writers.changed = counted.changed;
  writers.writing = counted.any && !counted.past_daemon;
  writers.closing = counted.closing;
  if (!writers.writing) {
    TRY_ASSIGN(writers.writing, io::has_writer(blob));
  }
  return writers;
}

Result<> FilesOfStep::collect(InodeNumber step) {
  step_ = step;
  lasting_ = std::to_string(meta::formats::kReaders) + '\0';
  return meta::for_each_file(tree_, step, [&](const std::vector<std::string>& path, InodeNumber inode) -> Result<> {
    if (stop_) return Error(ECANCELED);
    TRY_ASSIGN(auto attributes, none_if_gone(tree_.attributes(inode)));
    if (!attributes) return success();  // it was removed this moment
    TRY_ASSIGN(const auto access, reachable(path, attributes->stat));
    if (!access) return success();
    TRY_ASSIGN(auto now, none_if_gone(inspect(inode, *attributes)));
    if (now) add(fmt::format("{}", fmt::join(path, "/")), inode, attributes->record, *now, *access);
    return success();
  });
}

Result<io::ReadableFile> FilesOfStep::open(uint32_t index) const {
  auto file = tree_.open_blob(made_[index].inode, O_RDONLY);
  const int failed = file ? 0 : file.error().errno_value();
  if (failed == EMFILE || failed == ENFILE || failed == ENOMEM) short_of_ = file.error();
  if (!file) return file.error();
  return io::ReadableFile(std::move(file).value());
}

std::optional<Error> FilesOfStep::short_of() const {
  return refused() && refused()->errno_value() == ECANCELED ? refused() : short_of_;
}

io::Digest FilesOfStep::version(const std::string& more) const {
  const std::string text = lasting_ + more;
  return io::digest_of(std::as_bytes(std::span(text)));
}

std::vector<std::string> FilesOfStep::digests() const {
  std::vector<std::string> digests;
  for (const SourceVersion& made : made_) {
    std::string& digest = digests.emplace_back();
    const auto record = tree_.inode(made.inode);
    const auto blob = record ? store_.index().blob(record.value().blob) : record.error();
    if (!blob || !meta::are_current(record.value(), blob.value().digest)) continue;
    digest = io::hex_of(blob.value().digest.root);
  }
  return digests;
}

Result<FilesOfStep::Now> FilesOfStep::inspect(InodeNumber inode, const Attributes& attributes) const {
  Now now{attributes.stat, {}, {}};
  if (!attributes.record.is_live_file() || tree_.is_damaged(inode)) return now;
  TRY_ASSIGN(const io::Fd blob, tree_.open_blob(inode, attributes.record, O_RDONLY));
  TRY_ASSIGN(now.stat, stat_after_its_tick(blob.get()));
  now.ctime = now.stat.st_ctim;
  TRY_ASSIGN(now.writers, ask_writers_(inode, blob.get()));
  return now;
}

void FilesOfStep::add(const std::string& path, InodeNumber inode, const meta::InodeRecord& record, const Now& now,
                      const Access& access) {
  const struct stat& st = now.stat;
  const bool frozen = (record.flags & meta::kFrozen) != 0;
  inodes_.push_back(inode);
  bytes_ += static_cast<uint64_t>(st.st_size);
  const std::string ctime = fmt::format("{}.{} ", now.ctime.tv_sec, now.ctime.tv_nsec);
  const auto& changed = now.writers.changed;
  const std::string same =
      fmt::format("{}{}{} {} {} {} {}.{} {} {} {} {} ", path, '\0', inode, record.blob, frozen, st.st_size,
                  st.st_mtim.tv_sec, st.st_mtim.tv_nsec, access.uid, access.gid, access.mode, now.writers.writing);
  lasting_ += same + ctime;
  fingerprint_ += same + (changed ? fmt::format("#{} ", *changed) : ctime) + fmt::format("{} ", record.newest_writer);
  closing_ = closing_ || (now.writers.writing && now.writers.closing);
  if (now.writers.writing) return problems_.push_back({path, "it is being written"});
  files_.push_back({path, static_cast<uint64_t>(st.st_size)});
  made_.push_back({inode, frozen, st.st_size, now.ctime, changed, record.newest_writer});
  access_.push_back(access);
  if (meta::later(st.st_mtim, time_)) time_ = st.st_mtim;
  if (!meta::formats::is_note(path) && (!saved_ || meta::later(st.st_mtim, *saved_))) saved_ = st.st_mtim;
}

bool FilesOfStep::has_run() const {
  return !runs_.empty() &&
         std::none_of(runs_.begin(), runs_.end(), [](const auto& run) { return run.second.process == 0; });
}

// Notes who wrote a swap file: ".../offloaded_tensors/rank00/0_6.tensor.swp"
void FilesOfStep::note_writer(const std::vector<std::string>& path, uint64_t process, uint32_t owner) {
  if (path.size() < 3 || path[path.size() - 3] != meta::kTensorsName || !meta::is_swap_file_name(path.back())) return;
  const Writer writer{process, owner};
  const auto [known, fresh] = runs_.emplace(path[path.size() - 2], writer);
  if (!fresh && !(known->second == writer)) known->second.process = 0;
}

Result<const FilesOfStep::Folder*> FilesOfStep::folder(const std::vector<std::string>& path, size_t depth) {
  if (depth < folders_.size() && folders_[depth].name == path[depth]) return &folders_[depth];
  folders_.resize(depth);
  Folder found{path[depth], 0, {}};
  TRY_ASSIGN(found.inode, tree_.child(depth == 0 ? step_ : folders_[depth - 1].inode, path[depth]));
  TRY_ASSIGN(found.record, tree_.inode(found.inode));
  folders_.push_back(std::move(found));
  return &folders_.back();
}

// Who may read the file and also reach it through the step's folders. None: a folder is gone.
Result<std::optional<Access>> FilesOfStep::reachable(const std::vector<std::string>& path, const struct stat& file) {
  Access access{file.st_uid, file.st_gid, file.st_mode & 0777};
  for (size_t depth = 0; depth + 1 < path.size(); ++depth) {
    TRY_ASSIGN(const auto found, none_if_gone(folder(path, depth)));
    if (!found) return std::optional<Access>();
    const meta::InodeRecord& record = (*found)->record;
    const bool same_owner = record.uid == access.uid && record.gid == access.gid;
    const uint32_t searchable = record.mode & 0111;
    if (searchable != 0111 && !same_owner) return std::optional(Access{0, 0, 0400});
    access.mode &= searchable << 2 | ~uint32_t{0444};
    if (depth + 2 == path.size()) note_writer(path, record.newest_writer, file.st_uid);
  }
  return std::optional(access);
}

}  // namespace ckptfs::fs::views
