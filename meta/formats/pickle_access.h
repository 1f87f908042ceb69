// What the readers of checkpoints ask of a pickle's values. Pure functions; none: it is not there, or of another kind.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "meta/formats/pickle.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Longer names are none: many values may share one text of any length.
inline constexpr size_t kLongestName = 4096;

std::optional<Pickle::Value> find(const std::optional<Pickle::Value>& dict, std::string_view key);
// The value of a number in a dict, as the state of torch's optimizers is kept.
std::optional<Pickle::Value> find(const std::optional<Pickle::Value>& dict, int64_t key);
// A dict of names by them; find() would look through all of it for each.
std::unordered_map<std::string_view, Pickle::Value> by_name(const std::optional<Pickle::Value>& dict);
// A number, or an enum made of one.
std::optional<int64_t> number_of(const std::optional<Pickle::Value>& value);
// The largest, where it is a list.
std::optional<int64_t> largest_of(const std::optional<Pickle::Value>& value);
// A torch.Size of what torch can have.
std::optional<Shape> shape_of(const Pickle::Value& value);

}  // namespace ckptfs::meta::formats
