#include "meta/formats/pickle_access.h"

#include <algorithm>
#include <unordered_set>

namespace ckptfs::meta::formats {

std::optional<std::string_view> short_text(const std::optional<Pickle::Value>& value) {
  const auto text = value ? value->text() : std::nullopt;
  return text && text->size() <= kLongestName ? text : std::nullopt;
}

std::optional<Pickle::Value> find(const std::optional<Pickle::Value>& dict, std::string_view key) {
  return dict ? dict->find(key) : std::nullopt;
}

std::optional<Pickle::Value> field(const std::optional<Pickle::Value>& dict, std::string_view key) {
  return dict && dict->pairs() <= kMostFields ? dict->find(key) : std::nullopt;
}

// Goes from the last pair to the first, because the last one of a name counts. Each distinct key is examined only once,
// even if it occurs a million times.
std::map<std::string_view, Pickle::Value> by_name(const std::optional<Pickle::Value>& dict) {
  std::map<std::string_view, Pickle::Value> found;
  std::unordered_set<uint32_t> seen;
  for (size_t at = dict ? dict->pairs() : 0; at > 0; --at) {
    const auto [key, value] = dict->pair(at - 1);
    const auto name = short_text(key);
    if (name && seen.insert(key.index()).second) found.emplace(*name, value);
  }
  return found;
}

std::vector<std::optional<Pickle::Value>> by_number(const std::optional<Pickle::Value>& dict, size_t end) {
  std::vector<std::optional<Pickle::Value>> found(end);
  for (size_t at = 0; dict && at < dict->pairs(); ++at) {
    const auto [key, value] = dict->pair(at);
    const auto number = key.integer();
    if (!number || *number < 0 || static_cast<uint64_t>(*number) >= end) continue;
    std::optional<Pickle::Value>& place = found[static_cast<size_t>(*number)];
    if (!place) place = value;
  }
  return found;
}

std::optional<int64_t> number_of(const std::optional<Pickle::Value>& value) {
  if (!value) return std::nullopt;
  if (value->integer()) return value->integer();
  const auto arguments = value->arguments();
  return arguments && arguments->size() == 1 ? (*arguments)[0].integer() : std::nullopt;
}

std::optional<int64_t> largest_of(const std::optional<Pickle::Value>& value) {
  auto largest = number_of(value);
  for (size_t at = 0; value && at < value->size(); ++at) largest = std::max(largest, (*value)[at].integer());
  return largest;
}

std::optional<Shape> numbers_of(const Pickle::Value& value) {
  if (value.size() > kMostDimensions) return std::nullopt;
  Shape shape;
  for (size_t at = 0; at < value.size(); ++at) {
    const auto length = value[at].integer();
    if (!length || *length < 0) return std::nullopt;
    shape.push_back(static_cast<uint64_t>(*length));
  }
  return shape;
}

std::optional<Shape> shape_of(const Pickle::Value& value) {
  const auto shape = numbers_of(value);
  return shape && elements_of(*shape) ? shape : std::nullopt;
}

}  // namespace ckptfs::meta::formats
