#include "gpu/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "io/control_message.h"
#include "io/log.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/zip_archive.h"

namespace ckptfs::gpu {
namespace {

using meta::formats::Piece;
using meta::formats::TensorMap;

uint64_t size_of_all(const std::vector<Piece>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), uint64_t{0},
                         [](uint64_t sum, const Piece& piece) { return sum + piece.size; });
}

// Returns "0" for "archive/data/0", and an empty string if the entry is no storage.
std::string storage_key(const std::string& entry) {
  constexpr std::string_view kData = "/data/";
  const size_t at = entry.find(kData);
  return at == std::string::npos ? std::string() : entry.substr(at + kData.size());
}

// Adds the ranges of files that hold the requested part of the item.
Result<> add_wanted(const Item& item, const Request& request, std::vector<Wanted>& wanted) {
  if (request.offset > item.size || request.size > item.size - request.offset) {
    return Error(EINVAL, item.name + ": it has " + std::to_string(item.size) + " bytes, and not " +
                             std::to_string(request.size) + " from " + std::to_string(request.offset) + " on");
  }
  uint64_t begin = 0;  // of the piece, within the item
  for (const Piece& piece : item.tensor.pieces) {
    const uint64_t from = std::max(begin, request.offset);
    const uint64_t to = std::min(begin + piece.size, request.offset + request.size);
    if (from < to) {
      wanted.push_back(
          {piece.file, piece.offset + (from - begin), to - from, request.target + (from - request.offset)});
    }
    begin += piece.size;
  }
  return success();
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path) {
  TRY_ASSIGN(std::string real, real_path(path));
  TRY_ASSIGN(const struct stat st, io::stat_at(AT_FDCWD, real));
  const bool step = S_ISDIR(st.st_mode);
  TRY_ASSIGN(FolderFiles files, step ? FolderFiles::of(real) : FolderFiles::of_file(real));
  std::unique_ptr<Checkpoint> found(new Checkpoint(std::move(real), std::move(files)));
  if (step) {
    found->add_items(meta::formats::read_checkpoint(found->files_));
  } else if (path.ends_with(".safetensors")) {
    TRY(found->files_.open(0));
    found->add_items(meta::formats::read_safetensors(found->files_, 0));
  } else if (const auto added = found->add_storages(); !added) {
    return Error(added.error().errno_value(), path + ": " + added.error().message());
  }
  if (!found->items_.empty() || (!step && found->problems_.empty())) return found;
  const std::string reason = found->problems_.empty() ? "no checkpoint that is known" : found->problems_[0].reason;
  return Error(EBADMSG, path + ": " + reason);
}

void Checkpoint::add_items(TensorMap map) {
  problems_ = std::move(map.problems);
  for (meta::formats::Parameter& parameter : map.parameters) {
    for (auto& [state, tensor] : parameter.states) {
      const std::string name = state == meta::formats::kParam ? parameter.name : parameter.name + "/" + state;
      const uint64_t size = size_of_all(tensor.pieces);
      items_.push_back({name, std::move(tensor), size});
    }
  }
}

Result<> Checkpoint::add_storages() {
  TRY_ASSIGN(const io::Fd file, files_.open(0));
  TRY_ASSIGN(auto archive, meta::formats::ZipArchive::open(file.get(), {0, files_.list()[0].size}));
  for (uint64_t entry = 0; entry < archive.entries(); ++entry) {
    const std::string key = storage_key(std::string(archive.name(entry)));
    if (key.empty()) continue;
    TRY_ASSIGN(const auto range, archive.range(entry));
    items_.push_back({key, {meta::formats::Dtype::uint8, {range.size}, {{0, range.offset, range.size}}}, range.size});
  }
  return success();
}

// Opens those that are not open yet, kMaximumDescriptors at a time: a file of a mount has two descriptors for a moment.
Result<> Checkpoint::open_files(const std::vector<uint32_t>& files) {
  std::vector<uint32_t> fresh;
  std::ranges::copy_if(files, std::back_inserter(fresh),
                       [this](uint32_t file) { return !opened_.contains(file) && !blobs_.contains(file); });
  TRY_ASSIGN(const auto mount, MountClient::of(path_));
  on_mount_ = mount.has_value();
  for (auto at = fresh.begin(); at != fresh.end();) {
    const auto end = at + std::min<ptrdiff_t>(fresh.end() - at, io::kMaximumDescriptors);
    const std::vector<uint32_t> some(at, end);
    for (const uint32_t file : some) {
      TRY_ASSIGN(opened_[file], files_.open(file));
    }
    if (mount) TRY(get_blobs(*mount, some));
    at = end;
  }
  return success();
}

// Gets the blobs of files that are open. A file whose blob we get is closed again, except for the first one: it keeps
// the step in use.
Result<> Checkpoint::get_blobs(const MountClient& mount, const std::vector<uint32_t>& files) {
  std::vector<std::string> paths;
  for (const uint32_t file : files) paths.push_back(files_.path(file));
  auto blobs = mount.blobs_to_read(paths);
  if (!blobs) {
    log::warn("{}: its files are read through the mount, not past it: {}", path_, blobs.error().message());
    return success();
  }
  for (size_t at = 0; at < files.size(); ++at) {
    auto& blob = blobs.value()[at];
    TRY_ASSIGN(const struct stat st, io::stat_fd(opened_[files[at]].get()));
    if (blob && blob.value().inode == st.st_ino) {
      blobs_[files[at]] = std::move(blob).value().blob;
      io::Fd opened = std::move(opened_.extract(files[at]).mapped());
      if (!kept_) kept_ = std::move(opened);
    } else {
      log::warn("{}: it is read through the mount, not past it: {}", paths[at],
                blob ? "it was replaced" : blob.error().message());
    }
  }
  return success();
}

Result<Checkpoint::Report> Checkpoint::load(Staging& staging, const std::vector<Request>& requests, Stream stream) {
  std::vector<Wanted> wanted;
  for (const Request& request : requests) {
    if (request.item >= items_.size()) return Error(EINVAL, "there is no such tensor");
    TRY(add_wanted(items_[request.item], request, wanted));
  }
  std::set<uint32_t> used;
  for (const Wanted& one : wanted) used.insert(one.file);
  const std::vector<uint32_t> files(used.begin(), used.end());
  TRY(open_files(files));
  Report report;
  std::vector<SourceFile> sources;
  std::map<uint32_t, uint32_t> place;
  for (const uint32_t file : files) {
    const auto blob = blobs_.find(file);
    const io::Fd& chosen = blob == blobs_.end() ? opened_[file] : blob->second;
    if (on_mount_ && blob == blobs_.end()) ++report.through_mount;
    place[file] = static_cast<uint32_t>(sources.size());
    TRY_ASSIGN(SourceFile source, make_source(files_.path(file), chosen.get()));
    sources.push_back(std::move(source));
  }
  for (Wanted& one : wanted) one.file = place[one.file];
  TRY_ASSIGN(report.moved, gpu::load(staging, sources, std::move(wanted), stream));
  return report;
}

}  // namespace ckptfs::gpu
