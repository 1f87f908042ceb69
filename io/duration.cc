#include "io/duration.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "io/text.h"

namespace ckptfs::io {
namespace {

constexpr std::array<std::pair<char, uint64_t>, 5> kUnits{
    {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 7 * 86400}}};
constexpr uint64_t kMost = uint64_t{100} * 366 * 86400;  // fits into nanoseconds of 64 bits, and seconds of 32

}  // namespace

Result<std::chrono::seconds> parse_duration(const std::string& text) {
  std::string_view digits = text;
  uint64_t unit = 1;
  const auto named = std::ranges::find_if(kUnits, [&](const auto& known) { return digits.ends_with(known.first); });
  if (named != kUnits.end()) {
    unit = named->second;
    digits.remove_suffix(1);
  }
  const auto number = parse_number<uint64_t>(digits);
  if (!number || *number > kMost / unit) {
    return Error(EINVAL, "'" + text + "' is no duration: a whole number and s, m, h, d or w, as in 36h");
  }
  return std::chrono::seconds(*number * unit);
}

}  // namespace ckptfs::io
