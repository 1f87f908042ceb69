#include "gpu/checkpoint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "gpu/open_source.h"
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

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path, const Options& options) {
  const meta::formats::MapOptions map{kMostMapBytes, kMostMapRuns, true, options.names == Names::saved, false};
  TRY_ASSIGN(auto source, open_source(path, options.remote));
  std::unique_ptr<Checkpoint> found(new Checkpoint(std::move(source)));
  const meta::formats::StepFiles& files = found->source_->files();
  const bool step = found->source_->is_step();
  if (step) {
    found->add_items(meta::formats::read_checkpoint(files, map));
  } else if (path.ends_with(".safetensors")) {
    TRY(files.open(0));
    found->add_items(meta::formats::read_safetensors(files, 0, map));
  } else if (const auto added = found->add_storages(); !added) {
    return with_name(path, added.error());
  }
  TRY(found->source_->check_fetched());
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
  const meta::formats::StepFiles& files = source_->files();
  TRY_ASSIGN(const io::ReadableFile file, files.open(0));
  TRY_ASSIGN(auto archive, meta::formats::ZipArchive::open(file, {0, files.list()[0].size}));
  for (uint64_t entry = 0; entry < archive.entries(); ++entry) {
    const std::string key = storage_key(std::string(archive.name(entry)));
    if (key.empty()) continue;
    TRY_ASSIGN(const auto range, archive.range(entry));
    add_item(key, {meta::formats::Dtype::uint8, {range.size}, {{0, range.offset, range.size}}});
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
  return source_->load(staging, std::move(wanted), stream);
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
  return source_->load(staging, std::move(wanted), stream);
}

}  // namespace ckptfs::gpu
