// How the readers of checkpoints access a pickle's values. Pure functions. They return nothing if a value is missing or
// of another kind.
//
// A pickle may use one dict, list or text in a million places, so the cost of each access is bounded. Fields are looked
// up only in small dicts, names must be short, and a large dict is made into a table once. The tables are sorted,
// because whoever writes a pickle could make all hashes collide.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "meta/formats/pickle.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Longer texts are not accepted as names.
inline constexpr size_t kLongestName = 1024;
// Larger dicts have no fields.
inline constexpr size_t kMostFields = 64;

// Returns a text of at most kLongestName bytes.
std::optional<std::string_view> short_text(const std::optional<Pickle::Value>& value);
// Searches the whole dict. Use it only once per dict.
std::optional<Pickle::Value> find(const std::optional<Pickle::Value>& dict, std::string_view key);
// Looks up a field in a dict of at most kMostFields pairs, such as an object's attributes or a parameter's state.
std::optional<Pickle::Value> field(const std::optional<Pickle::Value>& dict, std::string_view key);
// Makes a table of a dict by its names.
std::map<std::string_view, Pickle::Value> by_name(const std::optional<Pickle::Value>& dict);
// Returns the values for the keys 0 to `end` - 1 of a dict with integer keys, which is how torch's optimizers keep
// their state.
std::vector<std::optional<Pickle::Value>> by_number(const std::optional<Pickle::Value>& dict, size_t end);
// Returns an integer, or that of an enum.
std::optional<int64_t> number_of(const std::optional<Pickle::Value>& value);
// Returns an integer, or the largest one of a list.
std::optional<int64_t> largest_of(const std::optional<Pickle::Value>& value);
// Returns a list of numbers from 0 up, one for each dimension of a tensor; or a torch.Size, if its elements are in the
// range that torch supports, too.
std::optional<Shape> numbers_of(const Pickle::Value& value);
std::optional<Shape> shape_of(const Pickle::Value& value);

}  // namespace ckptfs::meta::formats
