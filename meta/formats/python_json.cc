#include "meta/formats/python_json.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace ckptfs::meta::formats {
namespace {

std::string without_names(const std::string& text) {
  constexpr std::array<std::string_view, 3> names{"NaN", "-Infinity", "Infinity"};
  std::string plain;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') quoted = !quoted;
    if (quoted && text[at] == '\\' && at + 1 < text.size()) plain += text[at++];
    const auto* const name = quoted ? names.end() : std::find_if(names.begin(), names.end(), [&](std::string_view one) {
      return std::string_view(text).substr(at).starts_with(one);
    });
    if (name == names.end()) {
      plain += text[at];
    } else {
      plain += "null";
      at += name->size() - 1;
    }
  }
  return plain;
}

}  // namespace

nlohmann::json parse_python_json(const std::string& text) {
  return nlohmann::json::parse(without_names(text), nullptr, false);
}

bool is_python_json(const std::string& text) { return nlohmann::json::accept(without_names(text)); }

}  // namespace ckptfs::meta::formats
