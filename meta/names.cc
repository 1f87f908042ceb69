#include "meta/names.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "io/text.h"

namespace ckptfs::meta {
namespace {

constexpr std::string_view kSetAsidePrefix = "incomplete-";
constexpr size_t kMostLetters = 64;  // of the word of an attempt
constexpr std::string_view kEarlierPartialSuffix = ".partial";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<uint64_t> number_behind(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return io::parse_number<uint64_t>(name.substr(prefix.size()));
}

// Before the number of a step: of those that hold folders with such names themselves, and of the others.
constexpr std::array<std::string_view, 5> kNestingPrefixes{"global_step", "checkpoint-", "step_", "step-", "step"};
constexpr std::array<std::string_view, 3> kPrefixes{"global_step_", "checkpoint_", "iter_"};

std::optional<uint64_t> number_behind_any(std::string_view name, std::span<const std::string_view> prefixes) {
  for (const std::string_view prefix : prefixes) {
    if (const auto number = number_behind(name, prefix)) return number;
  }
  return std::nullopt;
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
  const bool good = std::all_of(attempt.begin(), attempt.end(), [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
  if (good && !attempt.empty() && attempt.size() <= kMostLetters) return success();
  return Error(EINVAL, "'" + std::string(attempt) + "': an attempt is named by letters, digits and '-', at most 64");
}

std::string partial_name(std::string_view tag, std::string_view attempt) {
  return kPartialPrefix + std::string(attempt) + '-' + std::string(tag);
}

bool is_fetch_name(std::string_view name) {
  const std::string_view prefix = kPartialPrefix;
  return name.starts_with(prefix) && name.substr(prefix.size()).starts_with(kFetchAttempt);
}

bool is_partial_name(std::string_view name) {
  return name.starts_with(kPartialPrefix) || name.ends_with(kEarlierPartialSuffix);
}

std::vector<std::string_view> tags_of_partial(std::string_view name) {
  std::vector<std::string_view> tags;
  const std::string_view prefix = kPartialPrefix;
  if (name.starts_with(prefix)) {
    const size_t end = std::min(name.size(), prefix.size() + kMostLetters + 1);
    for (size_t at = prefix.size() + 1; at < end; ++at) {
      if (name[at] == '-') tags.push_back(name.substr(at + 1));
    }
  } else if (is_partial_name(name)) {
    const std::string_view attempt = name.substr(0, name.size() - kEarlierPartialSuffix.size());
    tags.push_back(attempt.substr(0, attempt.rfind('.')));
  }
  return tags;
}

std::string set_aside_name(std::string_view tag, unsigned attempt) {
  return std::string(kSetAsidePrefix) + (attempt > 1 ? std::to_string(attempt) + '-' : "") + std::string(tag);
}

bool is_set_aside_name(std::string_view name) { return name.starts_with(kSetAsidePrefix); }

Result<> check_tag(std::string_view tag) {
  const std::string shown(tag);
  if (tag.empty()) return Error(EINVAL, "a save needs a tag; give one, as global_step100");
  if (tag == "." || tag == ".." || tag == "latest") {
    return Error(EINVAL, "'" + shown + "' is a reserved name; choose another tag, as global_step100");
  }
  if (is_partial_name(tag)) {
    return Error(EINVAL, "'" + shown +
                             "': names that begin with partial- or end in .partial are of steps that were "
                             "never committed; choose another tag, as global_step100");
  }
  if (is_set_aside_name(tag)) {
    return Error(EINVAL, "'" + shown +
                             "': names that begin with incomplete- are of steps that were set aside; choose "
                             "another tag, as global_step100");
  }
  if (tag.size() > kMaximumName) return Error(ENAMETOOLONG, "a tag has at most 255 bytes");
  const bool bad = std::any_of(tag.begin(), tag.end(),
                               [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (bad) return Error(EINVAL, "a tag is one name: no slash, no control character");
  return success();
}

std::optional<uint64_t> step_number(std::string_view name) {
  if (const auto number = number_behind_any(name, kNestingPrefixes)) return number;
  if (const auto number = number_behind_any(name, kPrefixes)) return number;
  // Lightning's goes on: "epoch=3-step=900.ckpt", "epoch=3-step=900-v1"
  const size_t at = name.rfind("step=");
  if (name.starts_with("epoch=") && at != name.npos) {
    const std::string_view rest = name.substr(at + 5);
    return io::parse_number<uint64_t>(
        rest.substr(0, static_cast<size_t>(std::ranges::find_if_not(rest, is_digit) - rest.begin())));
  }
  for (const auto& [begin, key] :
       std::array<std::pair<std::string_view, std::string_view>, 2>{{{"epoch_", "_step_"}, {"ep", "-ba"}}}) {
    const size_t found = name.starts_with(begin) ? name.find(key, begin.size()) : name.npos;
    if (found != name.npos && io::parse_number<uint64_t>(name.substr(begin.size(), found - begin.size())))
      return io::parse_number<uint64_t>(name.substr(found + key.size()));
  }
  return std::nullopt;
}

bool may_hold_step(std::string_view name) {
  return number_behind_any(name, kNestingPrefixes) || (name.starts_with("epoch=") && step_number(name));
}

std::optional<uint64_t> last_number_in(std::string_view name) {
  if (const auto number = step_number(name)) return number;
  while (!name.empty() && !is_digit(name.back())) name.remove_suffix(1);
  size_t begin = name.size();
  while (begin > 0 && is_digit(name[begin - 1])) --begin;
  return io::parse_number<uint64_t>(name.substr(begin));
}

}  // namespace ckptfs::meta
