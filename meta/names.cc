#include "meta/names.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace ckptfs::meta {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads all of `text` as a decimal number.
std::optional<uint64_t> decimal(std::string_view text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<uint64_t> number_behind(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return decimal(name.substr(prefix.size()));
}

}  // namespace

bool is_swap_folder_name(std::string_view name) { return number_behind(name, "zero_stage_").has_value(); }

bool is_swap_file_name(std::string_view name) { return name.ends_with(".tensor.swp"); }

std::optional<unsigned> rank_of(std::string_view name) {
  const auto rank = number_behind(name, "rank");
  if (!rank || *rank > UINT32_MAX) return std::nullopt;
  return static_cast<unsigned>(*rank);
}

std::string checkpoint_rank_name(unsigned rank) { return (rank < 10 ? "rank0" : "rank") + std::to_string(rank); }

Result<> check_attempt(std::string_view attempt) {
  constexpr size_t kMostLetters = 64;
  const bool good = std::all_of(attempt.begin(), attempt.end(), [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
  if (good && !attempt.empty() && attempt.size() <= kMostLetters) return success();
  return Error(EINVAL, "'" + std::string(attempt) + "': an attempt is named by letters and digits, at most 64");
}

std::string partial_name(std::string_view tag, std::string_view attempt) {
  return std::string(tag) + '.' + std::string(attempt) + kPartialSuffix;
}

bool is_partial_name(std::string_view name) { return name.ends_with(kPartialSuffix); }

Result<> check_tag(std::string_view tag) {
  const std::string shown(tag);
  if (tag.empty()) return Error(EINVAL, "a save needs a tag; give one, as global_step100");
  if (tag == "." || tag == ".." || tag == "latest") {
    return Error(EINVAL, "'" + shown + "' is a reserved name; choose another tag, as global_step100");
  }
  if (is_partial_name(tag)) {
    return Error(EINVAL, "'" + shown + "': names that end in .partial are of steps that were never committed");
  }
  if (tag.size() > kMaximumName) return Error(ENAMETOOLONG, "a tag has at most 255 bytes");
  const bool bad = std::any_of(tag.begin(), tag.end(),
                               [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (bad) return Error(EINVAL, "a tag is one name: no slash, no control character");
  return success();
}

std::optional<uint64_t> step_number(std::string_view name) {
  for (const std::string_view prefix :
       std::array<std::string_view, 5>{"global_step", "checkpoint-", "step_", "step-", "step"}) {
    if (const auto number = number_behind(name, prefix)) return number;
  }
  const size_t at = name.rfind("step=");
  if (name.starts_with("epoch=") && at != std::string_view::npos) {
    std::string_view digits = name.substr(at + 5);
    digits = digits.substr(0, std::find_if_not(digits.begin(), digits.end(), is_digit) - digits.begin());
    return decimal(digits);
  }
  return std::nullopt;
}

}  // namespace ckptfs::meta
