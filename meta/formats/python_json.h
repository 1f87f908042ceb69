// JSON as Python's json module writes it: also NaN, Infinity and -Infinity, which become null. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ckptfs::meta::formats {

inline constexpr uint64_t kMostTrainerState = uint64_t{64} << 20;  // bytes of trainer_state.json

// Discarded (is_discarded()) where it is none.
nlohmann::json parse_python_json(const std::string& text);
// Is it some? Nothing is made of it.
bool is_python_json(const std::string& text);

}  // namespace ckptfs::meta::formats
