#include "meta/remote/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <random>
#include <tuple>

#include "io/objects/object_store.h"
#include "io/printable.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kIdDigits = 16;
constexpr size_t kLongestTag = 230;  // a file name has room for "~" and the number of a later commit behind it

// A number as it is written here: decimal, and nothing before it.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::to_string(number) == text ? std::optional(number) : std::nullopt;
}

bool is_id(std::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kIdDigits && std::ranges::all_of(text, is_digit);
}

// "<prefix><tag>/<n>"
std::optional<DecisionName> parse_decision(std::string_view key, std::string_view prefix) {
  if (!key.starts_with(prefix)) return std::nullopt;
  key.remove_prefix(prefix.size());
  const size_t slash = key.find('/');
  if (slash == std::string_view::npos || !check_tag(key.substr(0, slash))) return std::nullopt;
  const auto n = parse_number<uint64_t>(key.substr(slash + 1));
  if (!n || *n == 0) return std::nullopt;
  return DecisionName{std::string(key.substr(0, slash)), *n};
}

}  // namespace

std::strong_ordering PushName::operator<=>(const PushName& other) const {
  return std::tie(tag, slot, id) <=> std::tie(other.tag, other.slot, other.id);
}

std::string PushName::text() const { return fmt::format("{}/{}.{}", tag, slot, id); }

std::string new_id() {
  std::random_device device;
  const uint64_t number = (uint64_t{device()} << 32) | device();
  return fmt::format("{:016x}", number);
}

PushName new_push(const std::string& tag, uint32_t slot) { return {tag, slot, new_id()}; }

std::optional<PushName> parse_push(std::string_view text) {
  const size_t slash = text.find('/'), dot = text.rfind('.');
  if (slash == std::string_view::npos || dot == std::string_view::npos || dot < slash) return std::nullopt;
  const std::string_view tag = text.substr(0, slash), id = text.substr(dot + 1);
  const auto slot = parse_number<uint32_t>(text.substr(slash + 1, dot - slash - 1));
  if (!check_tag(tag) || !slot || !is_id(id)) return std::nullopt;
  return PushName{std::string(tag), *slot, std::string(id)};
}

std::string pack_key(const PushName& push, uint32_t pack) { return fmt::format("{}{}/{}", kPacks, push.text(), pack); }
std::string part_key(const PushName& push) { return kParts + push.text(); }
std::string vote_key(const DecisionName& decision, uint32_t slot) {
  return fmt::format("{}{}/{}/{}", kVotes, decision.tag, decision.n, slot);
}
std::string step_key(const DecisionName& decision) { return fmt::format("{}{}/{}", kSteps, decision.tag, decision.n); }
std::string gone_key(const DecisionName& decision) { return fmt::format("{}{}/{}", kGone, decision.tag, decision.n); }

std::optional<PushName> parse_part_key(std::string_view key) {
  const std::string_view prefix = kParts;
  return key.starts_with(prefix) ? parse_push(key.substr(prefix.size())) : std::nullopt;
}
std::optional<DecisionName> parse_step_key(std::string_view key) { return parse_decision(key, kSteps); }
std::optional<DecisionName> parse_gone_key(std::string_view key) { return parse_decision(key, kGone); }
std::optional<uint32_t> parse_vote_key(std::string_view key, const DecisionName& decision) {
  const std::string prefix = fmt::format("{}{}/{}/", kVotes, decision.tag, decision.n);
  return key.starts_with(prefix) ? parse_number<uint32_t>(key.substr(prefix.size())) : std::nullopt;
}

Result<> check_tag(std::string_view tag) {
  const std::string text = io::printable(tag);
  if (text != tag) return Error(EINVAL, text + ": a step whose name is not all text cannot be pushed; rename it");
  if (tag.find('~') != std::string_view::npos) {
    return Error(EINVAL, text + ": a step with '~' in its name cannot be pushed; rename it");
  }
  if (tag.find('/') != std::string_view::npos) return Error(EINVAL, text + ": it is no name of a step");
  if (tag.size() > kLongestTag) return Error(EINVAL, text + ": its name is too long to be pushed; rename it");
  return io::check_key(tag);
}

}  // namespace ckptfs::meta::remote
