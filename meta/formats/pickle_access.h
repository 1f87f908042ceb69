// What the readers of checkpoints ask of a pickle's values. Pure functions; none: it is not there, or of another kind.
//
// A pickle may have one dict, list or text in a million places. So whoever looks at a value many times bounds what one
// look costs: fields have small dicts, names are short, and of large dicts a table is made once. Names are sorted, not
// hashed: who writes them could have all hashes be the same.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "meta/formats/pickle.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// Longer names are none.
inline constexpr size_t kLongestName = 1024;
// A dict of more has no fields.
inline constexpr size_t kMostFields = 64;

// A short text.
std::optional<std::string_view> short_text(const std::optional<Pickle::Value>& value);
// Looks through all of the dict: for what is asked once of it.
std::optional<Pickle::Value> find(const std::optional<Pickle::Value>& dict, std::string_view key);
// Of an object's attributes, of a parameter's state.
std::optional<Pickle::Value> field(const std::optional<Pickle::Value>& dict, std::string_view key);
// A dict of names by them.
std::map<std::string_view, Pickle::Value> by_name(const std::optional<Pickle::Value>& dict);
// Of a dict of numbers, as the state of torch's optimizers is kept, what is there from 0 to before `end`.
std::vector<std::optional<Pickle::Value>> by_number(const std::optional<Pickle::Value>& dict, size_t end);
// A number, or an enum made of one.
std::optional<int64_t> number_of(const std::optional<Pickle::Value>& value);
// The largest, where it is a list.
std::optional<int64_t> largest_of(const std::optional<Pickle::Value>& value);
// A torch.Size of what torch can have.
std::optional<Shape> shape_of(const Pickle::Value& value);

}  // namespace ckptfs::meta::formats
