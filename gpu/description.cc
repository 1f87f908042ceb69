#include "gpu/description.h"

#include <algorithm>
#include <cerrno>
#include <unordered_map>
#include <utility>

namespace ckptfs::gpu {
namespace {

using meta::formats::elements_of;
using meta::formats::kMostDimensions;
using meta::formats::Shape;

constexpr std::string_view kMagic = "ckD1";  // raise the digit with any change of the bytes
constexpr unsigned kVarintBits = 7;

// --- Writing. Numbers are LEB128.

void put(std::string& out, uint64_t value) {
  for (; value >> kVarintBits != 0; value >>= kVarintBits) out.push_back(static_cast<char>(value | 0x80U));
  out.push_back(static_cast<char>(value));
}

void put(std::string& out, std::string_view text) {
  put(out, text.size());
  out.append(text);
}

// The distance from one tensor of the table to the next holding's: mostly 1, so that it takes one byte.
uint64_t zigzag(int64_t value) { return (static_cast<uint64_t>(value) << 1U) ^ static_cast<uint64_t>(value >> 63); }
int64_t unzigzag(uint64_t value) { return static_cast<int64_t>(value >> 1U) ^ -static_cast<int64_t>(value & 1U); }

bool lies_within(uint64_t offset, uint64_t size, uint64_t whole) { return size <= whole && offset <= whole - size; }

Error bad_holding(const Holding& holding, const std::string& what) {
  return Error(EINVAL, std::string(holding.name) + ": " + what);
}

Result<> check(const Holding& holding) {
  const size_t dimensions = holding.shape.size();
  if (dimensions > kMostDimensions) return bad_holding(holding, "too many dimensions");
  if (holding.offsets.size() != dimensions || holding.sizes.size() != dimensions) {
    return bad_holding(holding, "a box with another number of dimensions");
  }
  if (!elements_of(Shape(holding.shape.begin(), holding.shape.end()))) return bad_holding(holding, "too many elements");
  for (size_t at = 0; at < dimensions; ++at) {
    if (!lies_within(holding.offsets[at], holding.sizes[at], holding.shape[at])) {
      return bad_holding(holding, "a box that does not lie in the tensor");
    }
  }
  return success();
}

// Collects the tensors in the order of their first holdings.
class TableWriter {
 public:
  // Returns the tensor's index.
  Result<uint32_t> add(const Holding& holding) {
    const auto [found, is_new] = indices_.try_emplace(holding.name, static_cast<uint32_t>(first_.size()));
    if (is_new) {
      first_.push_back(&holding);
      put(bytes_, holding.name);
      put(bytes_, meta::formats::safetensors_name(holding.dtype));
      put(bytes_, holding.shape.size());
      for (const uint64_t size : holding.shape) put(bytes_, size);
    } else if (const Holding& first = *first_[found->second];
               first.dtype != holding.dtype || !std::ranges::equal(first.shape, holding.shape)) {
      return bad_holding(holding, "held twice, with another type or shape");
    }
    return found->second;
  }

  std::string take() {
    std::string table;
    put(table, first_.size());
    return table + bytes_;
  }

 private:
  std::unordered_map<std::string_view, uint32_t> indices_;
  std::vector<const Holding*> first_;
  std::string bytes_;
};

void put_box(std::string& out, const Holding& holding) {
  uint64_t parted = 0;  // a bit for each dimension in which the box is not as wide as the tensor
  for (size_t at = 0; at < holding.shape.size(); ++at) {
    if (holding.sizes[at] != holding.shape[at]) parted |= uint64_t{1} << at;
  }
  put(out, parted);
  for (size_t at = 0; at < holding.shape.size(); ++at) {
    if ((parted >> at & 1U) == 0) continue;
    put(out, holding.offsets[at]);
    put(out, holding.sizes[at]);
  }
}

// --- Reading.

Error bad(const std::string& what) { return Error(EBADMSG, "a description of what a rank holds: " + what); }

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  size_t left() const { return bytes_.size(); }
  bool failed() const { return failed_; }

  // Returns 0 after the end, or for a number that 64 bits do not hold. Then failed() is true for good.
  uint64_t number() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !bytes_.empty(); shift += kVarintBits) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      const uint64_t bits = byte & 0x7FU;
      if (bits << shift >> shift != bits) break;
      value |= bits << shift;
      if ((byte & 0x80U) == 0) return value;
    }
    failed_ = true;
    bytes_ = {};
    return 0;
  }

  std::string_view text() {
    const uint64_t size = number();
    if (size > bytes_.size()) failed_ = true;
    const auto found = bytes_.substr(0, failed_ ? 0 : size);
    bytes_.remove_prefix(found.size());
    return found;
  }

  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
  bool failed_ = false;
};

Result<DescribedTensor> read_tensor(Reader& reader) {
  DescribedTensor tensor;
  tensor.name = reader.text();
  const auto type = reader.text();
  const uint64_t dimensions = reader.number();
  if (reader.failed()) return bad("it ends in its table");
  const auto dtype = meta::formats::dtype_of_safetensors(type);
  if (!dtype) return bad(std::string(tensor.name) + " has a type that is not known");
  if (dimensions > kMostDimensions) return bad(std::string(tensor.name) + " has too many dimensions");
  tensor.dtype = *dtype;
  for (uint64_t at = 0; at < dimensions; ++at) tensor.shape.push_back(reader.number());
  if (reader.failed()) return bad("it ends in its table");
  if (!elements_of(tensor.shape)) return bad(std::string(tensor.name) + " has too many elements");
  tensor.box.resize(dimensions);
  tensor.box.insert(tensor.box.end(), tensor.shape.begin(), tensor.shape.end());
  return tensor;
}

// Appends a box of which `parted` tells the dimensions that are not whole. Returns false if it does not lie in the
// tensor.
bool read_box(Reader& reader, const DescribedTensor& whole, uint64_t parted, std::vector<uint64_t>& coordinates) {
  const Shape& shape = whole.shape;
  const size_t dimensions = shape.size(), begin = coordinates.size();
  if (dimensions < kMostDimensions && parted >> dimensions != 0) return false;
  coordinates.insert(coordinates.end(), whole.box.begin(), whole.box.end());
  uint64_t* const offsets = coordinates.data() + begin;
  uint64_t* const sizes = offsets + dimensions;
  for (size_t at = 0; at < dimensions; ++at) {
    if ((parted >> at & 1U) == 0) continue;
    offsets[at] = reader.number();
    sizes[at] = reader.number();
    if (!lies_within(offsets[at], sizes[at], shape[at])) return false;
  }
  return !reader.failed();
}

}  // namespace

Result<std::string> describe(std::span<const Holding> holdings) {
  TableWriter table;
  std::string boxes;
  put(boxes, holdings.size());
  int64_t before = -1;
  for (const Holding& holding : holdings) {
    TRY(check(holding));
    TRY_ASSIGN(const int64_t tensor, table.add(holding));
    put(boxes, zigzag(tensor - before));
    put_box(boxes, holding);
    before = tensor;
  }
  std::string bytes(kMagic);
  put(bytes, table.take());
  return bytes + boxes;
}

Result<Sections> sections_of(std::string_view description) {
  if (!description.starts_with(kMagic)) return bad("it is none, or one of another version of ckptfs");
  Reader reader(description.substr(kMagic.size()));
  const auto table = reader.text();
  if (reader.failed()) return bad("it ends in its table");
  return Sections{table, reader.rest()};
}

Result<std::vector<DescribedTensor>> read_table(std::string_view table) {
  Reader reader(table);
  const uint64_t count = reader.number();
  if (reader.failed() || count > reader.left()) return bad("it ends in its table");
  std::vector<DescribedTensor> tensors;
  for (uint64_t at = 0; at < count; ++at) {
    TRY_ASSIGN(auto tensor, read_tensor(reader));
    tensors.push_back(std::move(tensor));
  }
  if (reader.left() != 0) return bad("there is more in its table than it says");
  return tensors;
}

Result<DescribedBoxes> read_boxes(std::string_view boxes, std::span<const DescribedTensor> table, uint64_t& room) {
  Reader reader(boxes);
  const uint64_t count = reader.number();
  if (reader.failed() || count > reader.left()) return bad("it ends in its boxes");
  DescribedBoxes read;
  read.boxes.reserve(count);
  read.coordinates.reserve(4 * count);           // most tensors have two dimensions
  std::vector<std::pair<size_t, size_t>> parts;  // boxes that are no whole tensors, and their places in `coordinates`
  parts.reserve(count);
  uint64_t tensor = ~uint64_t{0};
  for (uint64_t at = 0; at < count; ++at) {
    tensor += static_cast<uint64_t>(unzigzag(reader.number()));
    const uint64_t parted = reader.number();
    if (reader.failed()) return bad("it ends in its boxes");
    if (tensor >= table.size()) return bad("a box of a tensor that it lacks");
    const DescribedTensor& whole = table[tensor];
    read.boxes.push_back({whole.box.data(), static_cast<uint32_t>(tensor)});
    if (parted == 0) continue;
    if (whole.box.size() > room) return Error(E2BIG, "all ranks together hold too many boxes for a plan");
    room -= whole.box.size();
    parts.emplace_back(at, read.coordinates.size());
    if (!read_box(reader, whole, parted, read.coordinates)) {
      return bad("a box of " + std::string(whole.name) + " that does not lie in it");
    }
  }
  if (reader.left() != 0) return bad("there are more boxes than it says");
  for (const auto& [index, begin] : parts) read.boxes[index].box = read.coordinates.data() + begin;
  return read;
}

}  // namespace ckptfs::gpu
