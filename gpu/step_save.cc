#include "gpu/step_save.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>

#include "io/fault.h"
#include "io/host.h"
#include "io/log.h"
#include "io/printable.h"
#include "io/retry.h"
#include "meta/formats/box.h"
#include "meta/names.h"

namespace ckptfs::gpu {
namespace {

using meta::formats::RankManifest;

constexpr size_t kOwnStages = 3;             // "copy", "write", "sync"
constexpr uint64_t kHeaderAlignment = 4096;  // of the offset at which the tensors begin

Result<> check_target(const StepTarget& target) {
  TRY(meta::check_tag(target.tag));
  if (target.world_size == 0 || target.rank >= target.world_size) {
    return Error(EINVAL, "rank " + std::to_string(target.rank) + " of " + std::to_string(target.world_size) +
                             ": ranks count from 0");
  }
  return meta::check_attempt(target.attempt);
}

Result<> sync_folder(const std::string& folder) {
  TRY_ASSIGN(const io::Fd fd, io::open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY));
  return io::fsync_fd(fd.get());
}

Result<std::string> make_folder(const StepTarget& target) {
  std::string folder = target.series + "/" + meta::partial_name(target.tag, target.attempt);
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) return last_error(folder);
  TRY(sync_folder(target.series));
  return folder;
}

// O_DIRECT keeps the mount from adopting the new file as a copy of another one.
Result<io::Fd> create(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL;
  auto file = io::open_at(AT_FDCWD, path, kFlags | O_DIRECT, 0666);
  if (!file && file.error().errno_value() == EINVAL) return io::open_at(AT_FDCWD, path, kFlags, 0666);
  return file;
}

// Removes the file of a save that could not begin.
Error abandoned(const std::string& path, const Error& why) {
  if (::unlink(path.c_str()) != 0) log::warn("{}", last_error(path + ": it is left, and holds nothing").message());
  return why;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<> check_piece(const SavedTensor& tensor, const meta::formats::SavedPiece& piece) {
  const bool named = !piece.of.empty() && meta::formats::elements_of(piece.shape);
  if (named && meta::formats::lies_within({piece.offsets, tensor.shape}, piece.shape)) return success();
  return Error(EINVAL, tensor.name + ": it is no piece of " + (piece.of.empty() ? "a tensor without name" : piece.of));
}

// Makes the header. Checks that each tensor's size fits its shape, and that no name occurs twice.
Result<meta::formats::SafetensorsHeader> header_of(const std::vector<SavedTensor>& tensors) {
  meta::formats::SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  std::set<std::string> names;
  for (const SavedTensor& tensor : tensors) {
    const auto elements = meta::formats::elements_of(tensor.shape);
    if (!elements || *elements * meta::formats::size_of(tensor.dtype) != tensor.size) {
      return Error(EINVAL, tensor.name + ": its shape has not its " + std::to_string(tensor.size) + " bytes");
    }
    if (tensor.name == "__metadata__" || io::printable(tensor.name) != tensor.name) {
      return Error(EINVAL, io::printable(tensor.name) + ": no name for a tensor in a safetensors file");
    }
    if (!names.insert(tensor.name).second) return Error(EINVAL, tensor.name + ": there are two tensors of that name");
    if (tensor.name.size() > meta::formats::kLongestTensorName) {
      return Error(EFBIG, tensor.name.substr(0, 60) + "...: a name of more than " +
                              std::to_string(meta::formats::kLongestTensorName) + " bytes");
    }
    header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0, tensor.size});
    if (!tensor.piece) continue;
    TRY(check_piece(tensor, *tensor.piece));
    header.metadata.emplace(std::string(meta::formats::kPieceKey) + tensor.name,
                            meta::formats::piece_text(*tensor.piece));
  }
  return header;
}

}  // namespace

Result<std::unique_ptr<StepSave>> StepSave::begin(std::shared_ptr<Staging> staging, StepTarget target) {
  TRY(check_target(target));
  TRY_ASSIGN(target.series, real_path(target.series));
  TRY_ASSIGN(auto mount, MountClient::of(target.series));
  auto folder = mount ? mount->begin(target.series, target.tag, target.attempt) : make_folder(target);
  TRY(folder);
  std::unique_ptr<StepSave> save(
      new StepSave(std::move(staging), std::move(target), std::move(folder).value(), std::move(mount)));
  save->begun_ = seconds_since_1970();
  return save;
}

Result<> StepSave::add_file(const std::string& name, uint64_t size, std::vector<Part> parts, Stream stream) {
  return add({name, size, {}, nullptr, nullptr, {}}, std::move(parts), stream);
}

Result<> StepSave::add_tensors(const std::string& name, const std::vector<SavedTensor>& tensors, Stream stream) {
  TRY_ASSIGN(const auto header, header_of(tensors));
  auto text = std::make_unique<const std::string>(meta::formats::safetensors_header(header, kHeaderAlignment));
  if (text->size() > meta::formats::kMostSafetensorsHeader || tensors.size() > meta::formats::kMostTensors) {
    return Error(EFBIG, name + ": " + std::to_string(tensors.size()) + " tensors with a header of " +
                            std::to_string(text->size()) +
                            " bytes are more than is read of one file; save fewer tensors by one rank");
  }
  std::vector<Part> parts = {{reinterpret_cast<const std::byte*>(text->data()), text->size(), 0}};
  uint64_t end = text->size();
  for (const SavedTensor& tensor : tensors) {
    parts.push_back({tensor.memory, tensor.size, end});
    end += tensor.size;
  }
  return add({name, end, {}, std::move(text), nullptr, {}}, std::move(parts), stream);
}

Result<> StepSave::add(File file, std::vector<Part> parts, Stream stream) {
  if (durable_) return Error(EINVAL, file.name + ": this rank's files are complete already");
  if (file.name.empty() || file.name.find('/') != std::string::npos || meta::formats::is_manifest_name(file.name)) {
    return Error(EINVAL, "'" + file.name + "': no name for a file of a step");
  }
  const std::string path = path_of(file.name);
  TRY_ASSIGN(io::Fd target, create(path));
  file.not_inherited.emplace(std::vector<int>{target.get()});
  if (mount_) {
    if (auto room = io::allocate(target.get(), file.size); !room) return abandoned(path, with_name(path, room.error()));
    auto blob = mount_->blob_to_write(path);
    if (blob) {
      file.opened = std::exchange(target, std::move(blob).value());
    } else {
      log::warn("{}: it is written through the mount, not past it: {}", path, blob.error().message());
    }
  }
  file.not_inherited.emplace(std::vector<int>{target.get(), file.opened.get()});
  auto save = FileSave::begin(staging_, path, std::move(target), file.size, std::move(parts), stream, digests_wanted_);
  if (!save) return abandoned(path, save.error());
  file.save = std::move(save).value();
  files_.push_back(std::move(file));
  return success();
}

Result<> StepSave::wait_copied() {
  for (const File& file : files_) {
    if (file.save) TRY(file.save->wait_copied());
  }
  return success();
}

Result<> StepSave::wait_durable() {
  if (failed_) return *failed_;
  if (durable_) return success();
  const auto durable = make_durable();
  if (!durable) failed_ = durable.error();
  return durable;
}

Result<> StepSave::make_durable() {
  for (File& file : files_) {
    if (!file.save) continue;
    TRY(file.save->wait_durable());
    note_times(file.save->times());
    if (auto& digests = file.save->digests()) digests_[file.name] = std::move(*digests);
    file.not_inherited.reset();
    file.save.reset();  // also closes its descriptor: a file that can still be written cannot be frozen
    file.opened.reset();
  }
  TRY(io::fault_point("step_save.before_freeze"));
  TRY(freeze_files());
  TRY(io::fault_point("step_save.before_manifest"));
  TRY(write_manifest());
  durable_ = true;
  return io::fault_point("step_save.after_manifest");
}

Result<> StepSave::freeze_files() const {
  if (!mount_) return sync_folder(folder_);
  std::vector<std::string> paths;
  for (const File& file : files_) paths.push_back(path_of(file.name));
  return mount_->freeze(paths);
}

Result<> StepSave::note(const std::string& stage, double seconds) {
  if (durable_) return Error(EINVAL, stage + ": the manifest is written already");
  const bool fits = noted_.contains(stage) || noted_.size() < meta::formats::kMostStages - kOwnStages;
  if (!meta::formats::is_stage_name(stage) || !fits) return Error(EINVAL, "'" + stage + "': no name for a stage");
  if (!std::isfinite(seconds) || seconds < 0) return Error(EINVAL, stage + ": no length of time");
  noted_[stage] += seconds;
  return success();
}

void StepSave::note_times(const FileSave::Times& times) {
  if (!times_) times_ = times;
  times_->begun = std::min(times_->begun, times.begun);
  times_->copied = std::max(times_->copied, times.copied);
  times_->written = std::max(times_->written, times.written);
}

// The three stages follow one another: until everything is copied, until it is written, until it is durable.
meta::formats::SaveTiming StepSave::timing() const {
  using Seconds = std::chrono::duration<double>;
  meta::formats::SaveTiming timing{begun_, seconds_since_1970(), io::host_name(), noted_};
  if (!times_) return timing;
  timing.stages["copy"] += Seconds(times_->copied - times_->begun).count();
  timing.stages["write"] += Seconds(times_->written - times_->copied).count();
  timing.stages["sync"] += Seconds(std::chrono::steady_clock::now() - times_->written).count();
  return timing;
}

Result<> StepSave::write_manifest() {
  RankManifest manifest{target_.attempt, target_.rank, target_.world_size, {}, timing()};
  for (const File& file : files_) manifest.files.push_back({file.name, file.size});
  manifest.digests = digests_;
  const std::string path = path_of(meta::formats::manifest_name(target_.rank));
  std::string text = meta::formats::manifest_text(manifest);
  if (!manifest.digests.empty() && text.size() > meta::formats::kMostManifest) {
    log::warn("{}: the digests are left out, because the manifest would be too long", path);
    manifest.digests.clear();
    text = meta::formats::manifest_text(manifest);
  }
  auto written = io::replace_file(path, text, 0666);
  if (written || written.error().errno_value() != ENOENT) return written;
  // ENOENT: another rank may have committed as soon as it could see our manifest, the last one. The commit made it
  // durable.
  TRY_ASSIGN(const bool committed, is_committed());
  return committed ? Result<>(success()) : written;
}

Result<std::optional<std::string>> StepSave::commit(bool seal) {
  if (failed_) return *failed_;
  if (!durable_) return Error(EINVAL, folder_ + ": wait until this rank's files are durable");
  auto committed = try_commit(seal);
  if (!committed && !mount_) failed_ = committed.error();  // perhaps of a sync; a mount's daemon knows its own
  return committed;
}

Result<std::optional<std::string>> StepSave::try_commit(bool seal) const {
  TRY(io::fault_point("step_save.before_commit"));
  auto outcome = mount_ ? mount_->commit(folder_, target_.tag, target_.world_size, seal) : commit_in_folder();
  if (outcome || outcome.error().errno_value() != ENOENT) return outcome;
  TRY_ASSIGN(const bool committed, is_committed());  // another rank, or an earlier call of this one, has committed
  if (!committed) return outcome;
  if (seal && mount_) TRY(seal_step());
  return std::optional<std::string>();
}

// Does nothing if the step is sealed already. A folder that is only a part of a step cannot be sealed (EINVAL), which
// is no error either.
Result<> StepSave::seal_step() const {
  const std::string step = target_.series + "/" + target_.tag;
  const int outcome = ::setxattr(step.c_str(), "user.ckptfs.seal", "1", 1, 0);
  if (outcome != 0 && errno != EINVAL) return last_error(step + ": sealing it");
  return success();
}

// Returns true if the step holds this rank's manifest of this attempt.
Result<bool> StepSave::is_committed() const {
  const std::string path = target_.series + "/" + target_.tag + "/" + meta::formats::manifest_name(target_.rank);
  TRY_ASSIGN(const auto text, none_if_gone(io::read_file(path)));
  if (!text) return false;
  TRY_ASSIGN(const RankManifest manifest, meta::formats::parse_manifest(*text));
  return manifest.attempt == target_.attempt;
}

// Does what the daemon does (meta/steps/partial.cc), with the means of any file system. A lock admits one rank at a
// time.
Result<std::optional<std::string>> StepSave::commit_in_folder() const {
  TRY_ASSIGN(const io::Fd series, io::open_at(AT_FDCWD, target_.series, O_RDONLY | O_DIRECTORY));
  if (io::retry_interrupted([&] { return ::flock(series.get(), LOCK_EX); }) != 0) return last_error(target_.series);
  TRY_ASSIGN(const FolderFiles files, FolderFiles::of(folder_));
  const auto attendance = meta::formats::check_manifests(files, target_.world_size);
  if (!attendance.complete()) return std::optional(attendance.reason);
  TRY(sync_folder(folder_));
  const std::string step = target_.series + "/" + target_.tag;
  if (::rename(folder_.c_str(), step.c_str()) != 0) {  // rename replaces an empty folder
    if (errno != EEXIST && errno != ENOTEMPTY) return last_error(step);
    TRY(merge_into(step, files));
  }
  TRY(io::fsync_fd(series.get()));
  return std::optional<std::string>();
}

// Removes the old step's manifests first and moves the new ones last. In between the step is never complete.
Result<> StepSave::merge_into(const std::string& step, const FolderFiles& files) const {
  TRY_ASSIGN(const FolderFiles before, FolderFiles::of(step));
  for (uint32_t index = 0; index < before.list().size(); ++index) {
    if (!meta::formats::is_manifest_name(before.list()[index].path)) continue;
    if (::unlink(before.path(index).c_str()) != 0) return last_error(before.path(index));
  }
  TRY(sync_folder(step));
  for (const bool manifests : {false, true}) {
    for (uint32_t index = 0; index < files.list().size(); ++index) {
      const std::string& name = files.list()[index].path;
      if (meta::formats::is_manifest_name(name) != manifests) continue;
      if (::rename(files.path(index).c_str(), (step + "/" + name).c_str()) != 0) return last_error(step + "/" + name);
    }
    TRY(sync_folder(step));
  }
  if (::rmdir(folder_.c_str()) != 0) return last_error(folder_);
  return success();
}

}  // namespace ckptfs::gpu
