#include "meta/formats/pickle_access.h"

#include <algorithm>

namespace ckptfs::meta::formats {

using Value = Pickle::Value;

std::optional<Value> find(const std::optional<Value>& dict, std::string_view key) {
  return dict ? dict->find(key) : std::nullopt;
}

std::optional<Value> find(const std::optional<Value>& dict, int64_t key) {
  for (size_t at = 0; dict && at < dict->pairs(); ++at) {
    const auto [number, value] = dict->pair(at);
    if (number.integer() == key) return value;
  }
  return std::nullopt;
}

std::unordered_map<std::string_view, Value> by_name(const std::optional<Value>& dict) {
  std::unordered_map<std::string_view, Value> found;
  for (size_t at = 0; dict && at < dict->pairs(); ++at) {
    const auto [name, value] = dict->pair(at);
    if (name.text() && name.text()->size() <= kLongestName) found.insert_or_assign(*name.text(), value);
  }
  return found;
}

std::optional<int64_t> number_of(const std::optional<Value>& value) {
  if (!value) return std::nullopt;
  if (value->integer()) return value->integer();
  const auto arguments = value->arguments();
  return arguments && arguments->size() == 1 ? (*arguments)[0].integer() : std::nullopt;
}

std::optional<int64_t> largest_of(const std::optional<Value>& value) {
  auto largest = number_of(value);
  for (size_t at = 0; value && at < value->size(); ++at) largest = std::max(largest, (*value)[at].integer());
  return largest;
}

std::optional<Shape> shape_of(const Value& value) {
  constexpr size_t kMostDimensions = 64;
  if (value.size() > kMostDimensions) return std::nullopt;
  Shape shape;
  for (size_t at = 0; at < value.size(); ++at) {
    const auto length = value[at].integer();
    if (!length || *length < 0) return std::nullopt;
    shape.push_back(static_cast<uint64_t>(*length));
  }
  return elements_of(shape) ? std::optional(shape) : std::nullopt;
}

}  // namespace ckptfs::meta::formats
