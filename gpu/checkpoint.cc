#include "gpu/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "io/control_message.h"
#include "io/log.h"
#include "meta/formats/box.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/zip_archive.h"

namespace ckptfs::gpu {
namespace {

using meta::formats::Box;
using meta::formats::BoxRuns;
using meta::formats::elements_of;
using meta::formats::Piece;
using meta::formats::PlacedBox;
using meta::formats::Shape;
using meta::formats::TensorMap;

// How a step is read here: it is the only one, in the memory of the trainer. A step of 1,024 ranks with 2,000 tensors
// has 2 million boxes of some 200 bytes. Tensors that are cut by columns stay boxes, so the runs are those of other
// layouts.
constexpr uint64_t kMostMapBytes = uint64_t{4} << 30;
constexpr uint64_t kMostMapRuns = uint64_t{1} << 26;
constexpr size_t kMostDigests = size_t{1} << 24;  // of all files: 512 MiB, and 16 TiB in chunks of 1 MiB

// Returns "0" for "archive/data/0", and an empty string if the entry is no storage.
std::string storage_key(const std::string& entry) {
  constexpr std::string_view kData = "/data/";
  const size_t at = entry.find(kData);
  return at == std::string::npos ? std::string() : entry.substr(at + kData.size());
}

// Appends an element's bytes as a last dimension.
Box in_bytes(Box box, uint64_t element) {
  box.offsets.push_back(0);
  box.sizes.push_back(element);
  return box;
}

// Adds the ranges of files that hold bytes [offset, offset + size) of an item that has pieces.
void add_range(const Item& item, uint64_t offset, uint64_t size, std::byte* target, std::vector<Wanted>& wanted) {
  const auto behind = std::ranges::upper_bound(item.begins, offset);
  for (size_t at = behind - item.begins.begin() - 1; size > 0; ++at) {
    const Piece& piece = item.tensor.pieces[at];
    const uint64_t inside = offset - item.begins[at], some = std::min(piece.size - inside, size);
    if (some != 0) wanted.push_back({piece.file, piece.offset + inside, some, target});
    offset += some;
    size -= some;
    target += some;
  }
}

// What two boxes have in common; nothing if that is empty.
std::optional<Box> common_of(const Box& one, const Box& other) {
  const auto begin = [&](size_t at) { return std::max(one.offsets[at], other.offsets[at]); };
  const auto end = [&](size_t at) {
    return std::min(one.offsets[at] + one.sizes[at], other.offsets[at] + other.sizes[at]);
  };
  for (size_t at = 0; at < one.sizes.size(); ++at) {
    if (begin(at) >= end(at)) return std::nullopt;
  }
  Box common;
  for (size_t at = 0; at < one.sizes.size(); ++at) {
    common.offsets.push_back(begin(at));
    common.sizes.push_back(end(at) - begin(at));
  }
  return common;
}

// Returns a box with offsets that count from the beginning of another box around it.
Box seen_from(const Box& around, Box box) {
  for (size_t at = 0; at < box.offsets.size(); ++at) box.offsets[at] -= around.offsets[at];
  return box;
}

// Adds what a stored box has of a wanted one, which lies contiguously at `target`. Both are in bytes.
void add_common(const PlacedBox& stored, const Box& box, std::byte* target, std::vector<Wanted>& wanted) {
  const auto common = common_of(stored.box, box);
  if (!common) return;
  const BoxRuns in_file(seen_from(stored.box, *common), stored.box.sizes);
  const BoxRuns in_memory(seen_from(box, *common), box.sizes);
  // Both lengths are products of the same sizes from the last one on, so the smaller one divides the larger one.
  const uint64_t length = std::min(in_file.length(), in_memory.length());
  const auto place = [](const BoxRuns& runs, uint64_t at) {
    return runs.begin(at / runs.length()) + at % runs.length();
  };
  for (uint64_t at = 0; at < in_file.count() * in_file.length(); at += length) {
    wanted.push_back(
        {stored.piece.file, stored.piece.offset + place(in_file, at), length, target + place(in_memory, at)});
  }
}

// Adds the ranges of files that hold bytes [begin, end) of a box that is in bytes.
void add_wanted(const Item& item, const Box& box, uint64_t begin, uint64_t end, std::byte* target,
                std::vector<Wanted>& wanted) {
  Shape shape = item.tensor.shape;
  shape.push_back(size_of(item.tensor.dtype));
  const size_t before = wanted.size();
  for (const Box& part : boxes_of_range(box, begin, end)) {
    const uint64_t size = *elements_of(part.sizes);
    if (item.boxes.empty()) {
      BoxRuns(part, shape).for_each(0, size, [&](uint64_t offset, uint64_t at, uint64_t bytes) {
        add_range(item, offset, bytes, target + at, wanted);
      });
    }
    for (const PlacedBox& stored : item.boxes) add_common(stored, part, target, wanted);
    target += size;
  }
  for (size_t at = before; at < wanted.size(); ++at) wanted[at].of = &item.name;
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path, Names names) {
  const meta::formats::MapOptions options{kMostMapBytes, kMostMapRuns, true, names == Names::saved};
  TRY_ASSIGN(std::string real, real_path(path));
  TRY_ASSIGN(const struct stat st, io::stat_at(AT_FDCWD, real));
  const bool step = S_ISDIR(st.st_mode);
  TRY_ASSIGN(FolderFiles files, step ? FolderFiles::of(real) : FolderFiles::of_file(real));
  std::unique_ptr<Checkpoint> found(new Checkpoint(std::move(real), std::move(files)));
  if (step) {
    found->add_items(meta::formats::read_checkpoint(found->files_, options));
  } else if (path.ends_with(".safetensors")) {
    TRY(found->files_.open(0));
    found->add_items(meta::formats::read_safetensors(found->files_, 0, options));
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
      add_item(name, std::move(tensor));
    }
  }
}

void Checkpoint::add_item(std::string name, meta::formats::Tensor tensor) {
  const unsigned element = size_of(tensor.dtype);
  Item item{std::move(name), std::move(tensor), 0};
  item.boxes = std::exchange(item.tensor.boxes, {});
  for (PlacedBox& placed : item.boxes) {
    placed.box = in_bytes(std::move(placed.box), element);
    item.size += placed.piece.size;
  }
  for (const Piece& piece : item.tensor.pieces) {
    item.begins.push_back(item.size);
    item.size += piece.size;
  }
  items_.push_back(std::move(item));
}

Result<> Checkpoint::add_storages() {
  TRY_ASSIGN(const io::ReadableFile file, files_.open(0));
  TRY_ASSIGN(auto archive, meta::formats::ZipArchive::open(file, {0, files_.list()[0].size}));
  for (uint64_t entry = 0; entry < archive.entries(); ++entry) {
    const std::string key = storage_key(std::string(archive.name(entry)));
    if (key.empty()) continue;
    TRY_ASSIGN(const auto range, archive.range(entry));
    add_item(key, {meta::formats::Dtype::uint8, {range.size}, {{0, range.offset, range.size}}});
  }
  return success();
}

// Reads the manifests of a step. A file of another length than in its manifest is not the one that was saved there.
Result<> Checkpoint::find_digests() {
  std::map<std::string_view, uint32_t> places;
  const auto& list = files_.list();
  for (uint32_t file = 0; file < list.size(); ++file) places[list[file].path] = file;
  std::map<uint32_t, meta::formats::FileDigests> found;
  size_t count = 0;
  for (uint32_t file = 0; file < list.size(); ++file) {
    if (!meta::formats::is_manifest_name(list[file].path)) continue;
    TRY_ASSIGN(const std::string text, files_.read(file, meta::formats::kMostManifest));
    auto manifest = meta::formats::parse_manifest(text);
    if (!manifest) return Error(manifest.error().errno_value(), files_.path(file) + ": " + manifest.error().message());
    for (const auto& [path, size] : manifest.value().files) {
      const auto digests = manifest.value().digests.find(path);
      const auto place = places.find(path);
      if (digests == manifest.value().digests.end() || place == places.end()) continue;
      if (list[place->second].size != size) continue;
      count += digests->second.digests.size();
      if (count > kMostDigests) return Error(EFBIG, path_ + ": its manifests have too many digests");
      found[place->second] = std::move(digests->second);
    }
  }
  digests_ = std::move(found);
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
      TRY_ASSIGN(opened_[file], files_.descriptor(file));
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
    const Item& item = items_[request.item];
    if (request.offset > item.size || request.size > item.size - request.offset) {
      return Error(EINVAL, item.name + ": it has " + std::to_string(item.size) + " bytes, and not " +
                               std::to_string(request.size) + " from " + std::to_string(request.offset) + " on");
    }
    const Box box = in_bytes(meta::formats::whole_box(item.tensor.shape), size_of(item.tensor.dtype));
    add_wanted(item, box, request.offset, request.offset + request.size, request.target, wanted);
  }
  return read(staging, std::move(wanted), stream);
}

Result<Checkpoint::Report> Checkpoint::load_boxes(Staging& staging, const std::vector<BoxRequest>& requests,
                                                  Stream stream) {
  std::vector<Wanted> wanted;
  for (const BoxRequest& request : requests) {
    if (request.item >= items_.size()) return Error(EINVAL, "there is no such tensor");
    const Item& item = items_[request.item];
    if (!meta::formats::lies_within(request.box, item.tensor.shape)) {
      return Error(EINVAL, item.name + ": the wanted box lies outside it");
    }
    const uint64_t elements = *elements_of(request.box.sizes), element = size_of(item.tensor.dtype);
    if (request.begin > request.end || request.end > elements) {
      return Error(EINVAL, item.name + ": the wanted box has " + std::to_string(elements) + " elements, and not " +
                               std::to_string(request.begin) + " to " + std::to_string(request.end));
    }
    add_wanted(item, in_bytes(request.box, element), request.begin * element, request.end * element, request.target,
               wanted);
  }
  return read(staging, std::move(wanted), stream);
}

Result<> Checkpoint::tell_loaded(const meta::formats::RankTimes& times) const {
  TRY_ASSIGN(const auto mount, MountClient::of(path_));
  return mount ? mount->loaded(path_, times) : Result<>(success());
}

Result<Checkpoint::Report> Checkpoint::read(Staging& staging, std::vector<Wanted> wanted, Stream stream) {
  std::set<uint32_t> used;
  for (const Wanted& one : wanted) used.insert(one.file);
  const std::vector<uint32_t> files(used.begin(), used.end());
  TRY(open_files(files));
  if (!digests_) TRY(find_digests());
  Report report;
  std::vector<SourceFile> sources;
  std::map<uint32_t, uint32_t> place;
  for (const uint32_t file : files) {
    const auto blob = blobs_.find(file);
    const io::Fd& chosen = blob == blobs_.end() ? opened_[file] : blob->second;
    if (on_mount_ && blob == blobs_.end()) ++report.through_mount;
    place[file] = static_cast<uint32_t>(sources.size());
    TRY_ASSIGN(SourceFile source, make_source(files_.path(file), chosen.get()));
    const auto digests = digests_->find(file);
    if (digests != digests_->end() && files_.list()[file].size == source.size) source.digests = &digests->second;
    sources.push_back(std::move(source));
  }
  for (Wanted& one : wanted) one.file = place[one.file];
  TRY_ASSIGN(report.moved, gpu::load(staging, sources, std::move(wanted), stream));
  return report;
}

}  // namespace ckptfs::gpu
