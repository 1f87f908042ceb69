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
constexpr size_t kTermDigits = 8, kOrderDigits = 24;
constexpr size_t kLongestTag = 210;  // the file name of a decision has room for the others

// A number as it is written here: decimal, and nothing before it.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  const auto number = io::parse_number<Number>(text);
  return number && std::to_string(*number) == text ? number : std::nullopt;
}

bool is_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
bool is_id(std::string_view text) { return text.size() == kIdDigits && std::ranges::all_of(text, is_digit); }

// What stands behind the prefix; nothing: the key has another one.
std::optional<std::string_view> behind(std::string_view key, std::string_view prefix) {
  return key.starts_with(prefix) ? std::optional(key.substr(prefix.size())) : std::nullopt;
}

// The number of so many lower-case hexadecimal digits.
std::optional<uint64_t> parse_hex(std::string_view text) {
  uint64_t number = 0;
  for (const char c : text) {
    if (!is_digit(c)) return std::nullopt;
    number = number << 4 | static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return number;
}

// "<prefix><order>.<tag>.<id>"
std::optional<DecisionName> parse_decision_key(std::string_view key, std::string_view prefix) {
  const auto rest = behind(key, prefix);
  return rest ? parse_decision(*rest) : std::nullopt;
}

}  // namespace

std::string Order::text() const { return fmt::format("{:08x}{:016x}", ~term, ~time); }

std::optional<Order> parse_order(std::string_view text) {
  if (text.size() != kOrderDigits) return std::nullopt;
  const auto term = parse_hex(text.substr(0, kTermDigits)), time = parse_hex(text.substr(kTermDigits));
  if (!term || !time) return std::nullopt;
  return Order{~static_cast<uint32_t>(*term), ~*time};
}

std::string DecisionName::text() const { return fmt::format("{}.{}.{}", order.text(), tag, id); }

std::optional<DecisionName> parse_decision(std::string_view text) {
  const auto order = parse_order(text.substr(0, kOrderDigits));
  const size_t dot = text.rfind('.');
  if (!order || dot == std::string_view::npos || dot <= kOrderDigits || text[kOrderDigits] != '.') return std::nullopt;
  const std::string_view tag = text.substr(kOrderDigits + 1, dot - kOrderDigits - 1), id = text.substr(dot + 1);
  if (!is_id(id) || !check_tag(tag)) return std::nullopt;
  return DecisionName{*order, std::string(tag), std::string(id)};
}

std::string PushName::text() const { return fmt::format("{}/{}.{}", tag, slot, id); }
std::string PushName::folder() const { return fmt::format("{}.{}/", tag, id); }

std::string new_id() {
  std::random_device device;
  const uint64_t number = (uint64_t{device()} << 32) | device();
  return fmt::format("{:016x}", number);
}

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
std::string step_key(const DecisionName& decision) { return kSteps + decision.text(); }
std::string gone_key(const DecisionName& decision) { return kGone + decision.text(); }
std::string owner_key(uint32_t slot, uint32_t term) { return fmt::format("{}{}/{}", kSlots, slot, term); }
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
std::optional<DecisionName> parse_step_key(std::string_view key) { return parse_decision_key(key, kSteps); }
std::optional<DecisionName> parse_gone_key(std::string_view key) { return parse_decision_key(key, kGone); }
std::optional<OwnerName> parse_owner_key(std::string_view key) {
  const auto rest = behind(key, kSlots);
  const size_t slash = rest ? rest->find('/') : std::string_view::npos;
  if (slash == std::string_view::npos) return std::nullopt;
  const auto slot = parse_number<uint32_t>(rest->substr(0, slash)),
             term = parse_number<uint32_t>(rest->substr(slash + 1));
  return slot && term && *term > 0 && *term < UINT32_MAX ? std::optional(OwnerName{*slot, *term}) : std::nullopt;
}
std::optional<uint64_t> parse_rules_key(std::string_view key) {
  const auto rest = behind(key, kRules);
  const auto n = rest ? parse_number<uint64_t>(*rest) : std::nullopt;
  return n && *n > 0 ? n : std::nullopt;
}

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
