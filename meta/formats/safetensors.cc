#include "meta/formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "io/fd.h"
#include "io/json.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {
namespace {

using Json = nlohmann::json;

constexpr const char* kMetadata = "__metadata__";
constexpr uint64_t kLengthSize = sizeof(uint64_t);
constexpr size_t kLongestEntry = size_t{16} << 10;  // of kept metadata
constexpr io::JsonBounds kHeaderBounds{
    .bytes = kMostSafetensorsHeader, .values = io::kAnyNumber, .text = uint64_t{4} << 20, .depth = 8};

Error bad_header(const std::string& what) { return Error(EBADMSG, "not a safetensors header: " + what); }
Error in_header(int errno_value, const std::string& what) {
  return Error(errno_value, "a safetensors header: " + what);
}

// Reads the header while it is parsed, because a JSON tree would take many times its size. A function that returns
// false ends the parsing with the error that it gave to fails().
class HeaderReader : public io::JsonVisitor {
 public:
  explicit HeaderReader(std::string_view keep) : keep_(keep) {}

  bool null() override { return unexpected(); }
  bool boolean(bool) override { return unexpected(); }
  bool number_integer(number_integer_t) override { return unexpected(); }
  bool number_float(number_float_t, const string_t&) override { return unexpected(); }

  bool number_unsigned(number_unsigned_t number) override {
    if (list_ == nullptr || list_->size() == kMostDimensions) return unexpected();
    list_->push_back(number);
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ != 2) return unexpected();
    if (in_metadata_) return keep_entry(text);
    if (key_ != "dtype") return unexpected();
    dtype_ = dtype_of_safetensors(text);
    if (dtype_) return true;
    return fails(Error(ENOTSUP, "tensor " + name_ + " is of type " + text + ", which is not known"));
  }

  bool key(string_t& key) override {
    if (depth_ == 1) name_ = key;
    if ((depth_ == 2 && in_metadata_) || key.size() <= kLongestTensorName) return JsonVisitor::key(key);
    return fails(in_header(EFBIG, "the name of a tensor has " + std::to_string(key.size()) + " bytes"));
  }

  SafetensorsHeader header;

 private:
  // Depth 1 is the header, 2 a tensor or the metadata, 3 a tensor's shape or offsets.
  bool begin(bool object) override { return object ? begin_object() : begin_list(); }

  bool begin_object() {
    if (depth_ > 2) return unexpected();
    in_metadata_ = depth_ == 2 && name_ == kMetadata;
    dtype_.reset();
    shape_.clear();
    offsets_.clear();
    has_shape_ = false;
    return true;
  }

  bool begin_list() {
    if (depth_ != 3 || in_metadata_) return unexpected();
    list_ = key_ == "shape" ? &shape_ : key_ == "data_offsets" ? &offsets_ : nullptr;
    if (list_ == nullptr) return unexpected();
    has_shape_ = has_shape_ || list_ == &shape_;
    list_->clear();
    return true;
  }

  bool end() override {
    list_ = nullptr;
    if (depth_ != 2 || in_metadata_) return true;
    if (!dtype_ || !has_shape_ || offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
      return fails(bad_header("tensor " + name_ + " lacks a dtype, a shape or data_offsets"));
    }
    if (header.tensors.size() == kMostTensors) {
      return fails(in_header(EFBIG, "it has more than " + std::to_string(kMostTensors) + " tensors"));
    }
    header.tensors.push_back({name_, *dtype_, shape_, offsets_[0], offsets_[1] - offsets_[0]});
    return true;
  }

  bool unexpected() {
    return fails(bad_header("its JSON has what no header has, in " + (name_.empty() ? "the beginning" : name_)));
  }

  // Most of the metadata is for the programs that load the tensors.
  bool keep_entry(const std::string& text) {
    if (keep_.empty() || !key_.starts_with(keep_)) return true;
    const bool fits = key_.size() <= keep_.size() + kLongestTensorName && text.size() <= kLongestEntry &&
                      header.metadata.size() < kMostTensors;
    if (!fits) return fails(in_header(EFBIG, "its metadata has too many or too long entries " + std::string(keep_)));
    header.metadata.emplace(key_, text);
    return true;
  }

  std::string_view keep_;
  std::string name_;  // of the tensor
  bool in_metadata_ = false;
  std::optional<Dtype> dtype_;
  bool has_shape_ = false;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t>* list_ = nullptr;  // numbers are added to it
};

// Sorts the tensors by their offsets, checks them, and makes the offsets count from the beginning of the file.
Result<> place(SafetensorsHeader& header, uint64_t begin, uint64_t end) {
  std::ranges::sort(header.tensors, {}, [](const SafeTensor& tensor) { return std::tie(tensor.offset, tensor.size); });
  std::set<std::string_view> names;
  uint64_t at = begin;
  for (SafeTensor& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) return bad_header("tensor " + tensor.name + " is there twice");
    if (tensor.offset != at - begin) return bad_header("there is a gap or an overlap before tensor " + tensor.name);
    const auto elements = elements_of(tensor.shape);
    if (!elements || *elements * size_of(tensor.dtype) != tensor.size)
      return bad_header("tensor " + tensor.name + " has not the length of its shape");
    if (tensor.size > end - at) return bad_header("the file ends before tensor " + tensor.name + " does");
    tensor.offset = at;
    at += tensor.size;
  }
  if (at != end) return bad_header("the file is longer than its tensors");
  return success();
}

}  // namespace

Result<SafetensorsHeader> read_safetensors_header(const io::LimitedFile& file, std::string_view keep) {
  TRY_ASSIGN(const uint64_t file_size, file.size());
  uint64_t length = 0;
  TRY_ASSIGN(const size_t got, file.read_full(std::as_writable_bytes(std::span(&length, 1)), 0));
  if (got < kLengthSize || file_size < kLengthSize) return bad_header("the file is shorter than 8 bytes");
  if (length > file_size - kLengthSize) {
    return bad_header("it would have " + std::to_string(length) + " bytes, more than the file");
  }
  HeaderReader reader(keep);
  if (const auto read = io::read_json(file, kLengthSize, length, kHeaderBounds, reader); !read) {
    const bool told = reader.why().errno_value() != 0;
    return told ? read.error() : in_header(read.error().errno_value(), read.error().message());
  }
  TRY(place(reader.header, kLengthSize + length, file_size));
  return std::move(reader.header);
}

std::string safetensors_header(const SafetensorsHeader& header, uint64_t alignment, uint64_t begin) {
  const auto quoted = [](std::string_view text) {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += quoted(kMetadata) + ':' + Json(header.metadata).dump(-1, ' ', false, Json::error_handler_t::replace) + ',';
  }
  uint64_t at = 0;
  for (const SafeTensor& tensor : header.tensors) {
    text += quoted(tensor.name) + R"(:{"dtype":)" + quoted(safetensors_name(tensor.dtype)) + R"(,"shape":)" +
            Json(tensor.shape).dump() + R"(,"data_offsets":[)" + std::to_string(at) + ',' +
            std::to_string(at + tensor.size) + "]},";
    at += tensor.size;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  const uint64_t excess = (kLengthSize + text.size() + alignment - begin) % alignment;
  text.resize(text.size() + (alignment - excess) % alignment, ' ');
  const uint64_t length = text.size();
  std::string whole(kLengthSize, '\0');
  std::memcpy(whole.data(), &length, kLengthSize);
  return whole + text;
}

}  // namespace ckptfs::meta::formats
