#include "meta/remote/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "io/objects/object_store.h"
#include "io/printable.h"
#include "io/text.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kIdDigits = 16;
constexpr size_t kLongestTag = 230;  // a file name has room for ".<id>" behind it, or for "~" and a number

// A number as it is written here: decimal, and nothing before it.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  const auto number = io::parse_number<Number>(text);
  return number && std::to_string(*number) == text ? number : std::nullopt;
}

bool is_id(std::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kIdDigits && std::ranges::all_of(text, is_digit);
}

// What stands behind the prefix; nothing: the key has another one.
std::optional<std::string_view> behind(std::string_view key, std::string_view prefix) {
  return key.starts_with(prefix) ? std::optional(key.substr(prefix.size())) : std::nullopt;
}

// "<n>", counted from 1.
std::optional<uint64_t> parse_count(std::string_view text) {
  const auto n = parse_number<uint64_t>(text);
  return n && *n > 0 ? n : std::nullopt;
}

// "<prefix><n>"
std::optional<uint64_t> parse_numbered(std::string_view key, std::string_view prefix) {
  const auto rest = behind(key, prefix);
  return rest ? parse_count(*rest) : std::nullopt;
}

// "<prefix><tag>/<n>"
std::optional<DecisionName> parse_decision(std::string_view key, std::string_view prefix) {
  const auto rest = behind(key, prefix);
  const size_t slash = rest ? rest->find('/') : std::string_view::npos;
  if (slash == std::string_view::npos || !check_tag(rest->substr(0, slash))) return std::nullopt;
  const auto n = parse_count(rest->substr(slash + 1));
  return n ? std::optional(DecisionName{std::string(rest->substr(0, slash)), *n}) : std::nullopt;
}

}  // namespace

std::string PushName::text() const { return fmt::format("{}/{}.{}", tag, slot, id); }
std::string PushName::folder() const { return fmt::format("{}.{}/", tag, id); }

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

std::string file_key(const PushName& push, uint32_t slots, std::string_view path) {
  if (slots == 1) return push.folder().append(path);
  return fmt::format("{}slot-{}/{}", push.folder(), push.slot, path);
}
bool comes_last(std::string_view key) {
  const std::string_view name = key.substr(key.rfind('/') + 1);
  return name == "config.json" || name == ".metadata" || name.ends_with(".index.json");
}
std::string push_key(const PushName& push) { return kPushes + push.text(); }
std::string part_key(const PushName& push) { return kParts + push.text(); }
std::string vote_key(const DecisionName& decision, uint32_t slot) {
  return fmt::format("{}{}/{}/{}", kVotes, decision.tag, decision.n, slot);
}
std::string step_key(const DecisionName& decision) { return fmt::format("{}{}/{}", kSteps, decision.tag, decision.n); }
std::string gone_key(const DecisionName& decision) { return fmt::format("{}{}/{}", kGone, decision.tag, decision.n); }

std::string rules_key(uint64_t n) { return fmt::format("{}{}", kRules, n); }

std::optional<std::string_view> parse_folder(std::string_view key) {
  const size_t slash = key.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view name = key.substr(0, slash);
  const size_t dot = name.rfind('.');
  const bool is_folder = dot != std::string_view::npos && is_id(name.substr(dot + 1)) && check_tag(name.substr(0, dot));
  return is_folder ? std::optional(key.substr(0, slash + 1)) : std::nullopt;
}
std::optional<PushName> parse_push_key(std::string_view key) {
  const auto rest = behind(key, kPushes);
  return rest ? parse_push(*rest) : std::nullopt;
}
std::optional<PushName> parse_part_key(std::string_view key) {
  const auto rest = behind(key, kParts);
  return rest ? parse_push(*rest) : std::nullopt;
}
std::optional<VoteName> parse_vote_key(std::string_view key) {
  const size_t slash = key.rfind('/');
  if (slash == std::string_view::npos) return std::nullopt;
  auto decision = parse_decision(key.substr(0, slash), kVotes);
  const auto slot = parse_number<uint32_t>(key.substr(slash + 1));
  return decision && slot ? std::optional(VoteName{std::move(*decision), *slot}) : std::nullopt;
}
std::optional<DecisionName> parse_step_key(std::string_view key) { return parse_decision(key, kSteps); }
std::optional<DecisionName> parse_gone_key(std::string_view key) { return parse_decision(key, kGone); }
std::optional<uint64_t> parse_rules_key(std::string_view key) { return parse_numbered(key, kRules); }

Result<> check_tag(std::string_view tag) {
  const std::string text = io::printable(tag);
  if (text != tag) return Error(EINVAL, text + ": a step whose name is not all text cannot be pushed; rename it");
  if (tag.find('~') != std::string_view::npos) {
    return Error(EINVAL, text + ": a step with '~' in its name cannot be pushed; rename it");
  }
  if (tag.find('/') != std::string_view::npos) return Error(EINVAL, text + ": it is no name of a step");
  if (tag.starts_with('.')) return Error(EINVAL, text + ": a step whose name begins with a dot cannot be pushed");
  if (tag.size() > kLongestTag) return Error(EINVAL, text + ": its name is too long to be pushed; rename it");
  return io::check_key(tag);
}

}  // namespace ckptfs::meta::remote
