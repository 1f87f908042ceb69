#include "meta/remote/remote_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/duration.h"
#include "io/fault.h"
#include "io/json.h"
#include "io/printable.h"
#include "io/text.h"
#include "meta/names.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;
using Time = std::chrono::system_clock::time_point;

constexpr const char* kRulesKind = "rules";
constexpr const char *kKeepLast = "keep_last", *kKeepEvery = "keep_every", *kKeepFor = "keep_for";
constexpr uint64_t kMostRulesBytes = uint64_t{16} << 20;
constexpr io::JsonBounds kRulesBounds{.bytes = kMostRulesBytes, .values = 1 << 18, .text = 1 << 12, .depth = 4};
constexpr int kMostTries = 16;  // of change_rules()

Result<uint64_t> parse_rule_count(const char* rule, const std::string& text) {
  const auto count = io::parse_number<uint64_t>(text);
  if (count && *count > 0) return *count;
  return Error(
      EINVAL, fmt::format("{}: '{}' is no value for it; it takes a whole number from 1 up", rule, io::printable(text)));
}

Result<std::chrono::seconds> parse_rule_time(const char* rule, const std::string& text) {
  auto time = io::parse_duration(text);
  if (time && time.value().count() > 0) return time;
  return Error(EINVAL, fmt::format("{}: '{}' is no value for it; it takes a duration, as in 30d or 36h", rule,
                                   io::printable(text)));
}

template <class Value, class Parse>
Result<> set_or_clear(std::optional<Value>& rule, const char* name, const std::string& text, const Parse& parse) {
  if (text.empty()) {
    rule.reset();
    return success();
  }
  TRY_ASSIGN(rule, parse(name, text));
  return success();
}

Result<NumberedRules> rules_of(const std::string& text, uint64_t n) {
  TRY_ASSIGN(const json object, parse_document(text, kRulesKind, kRulesBounds));
  NumberedRules numbered{n, {}, {}};
  TRY_ASSIGN(numbered.host, text_field(object, "host"));
  for (const char* const name : {kKeepLast, kKeepEvery, kKeepFor}) {
    if (!object.contains(name)) continue;
    TRY_ASSIGN(const std::string value, text_field(object, name));
    if (auto set = set_rule(numbered.rules, name, value); !set) return Error(EBADMSG, set.error().message());
  }
  TRY_ASSIGN(auto pins, texts_field(object, "pins"));
  numbered.rules.pins.insert(pins.begin(), pins.end());
  return numbered;
}

// The decision about a step that so many newer ones stand beside.
RuleDecision decide(const RemoteRules& rules, const CommittedStep& step, uint64_t newer, Time now) {
  RuleDecision decision;
  std::vector<std::string> reasons;
  if (newer == 0 && !io::fault_value("newest_removed")) reasons.emplace_back("newest");
  if (rules.pins.contains(step.decision.text()) && !io::fault_value("pins_forgotten")) reasons.emplace_back("pinned");
  if (!rules.has_keep_rule()) reasons.emplace_back("no rule");
  const auto texts = texts_of(rules);
  const auto kept_by = [&](const char* rule) { reasons.push_back(fmt::format("{}={}", rule, texts.at(rule))); };
  if (rules.keep_last && newer < *rules.keep_last) kept_by(kKeepLast);
  if (rules.keep_every && step.number() % *rules.keep_every == 0) kept_by(kKeepEvery);
  if (rules.keep_for && now - step.committed < *rules.keep_for) {
    if (reasons.empty()) decision.until = step.committed + *rules.keep_for;
    kept_by(kKeepFor);
  }
  decision.stays = !reasons.empty();
  if (!decision.stays) {
    for (const auto& [rule, value] : texts) reasons.push_back(fmt::format("{}={}", rule, value));
  }
  decision.why = fmt::format("{}", fmt::join(reasons, ", "));
  return decision;
}

}  // namespace

std::map<std::string, std::string> texts_of(const RemoteRules& rules) {
  std::map<std::string, std::string> texts;
  if (rules.keep_last) texts[kKeepLast] = std::to_string(*rules.keep_last);
  if (rules.keep_every) texts[kKeepEvery] = std::to_string(*rules.keep_every);
  if (rules.keep_for) {
    constexpr int64_t kDay = 86'400;
    const int64_t seconds = rules.keep_for->count();
    texts[kKeepFor] = seconds % kDay == 0 ? fmt::format("{}d", seconds / kDay) : fmt::format("{}s", seconds);
  }
  return texts;
}

Result<> set_rule(RemoteRules& rules, const std::string& name, const std::string& value) {
  if (name == kKeepLast) return set_or_clear(rules.keep_last, kKeepLast, value, parse_rule_count);
  if (name == kKeepEvery) return set_or_clear(rules.keep_every, kKeepEvery, value, parse_rule_count);
  if (name == kKeepFor) return set_or_clear(rules.keep_for, kKeepFor, value, parse_rule_time);
  return Error(EINVAL, fmt::format("{}: a remote has no such rule; it has {}, {} and {}", io::printable(name),
                                   kKeepLast, kKeepEvery, kKeepFor));
}

std::string text_of(const NumberedRules& numbered) {
  json object = new_document(kRulesKind);
  object["host"] = numbered.host;
  for (const auto& [rule, value] : texts_of(numbered.rules)) object[rule] = value;
  object["pins"] = numbered.rules.pins;
  return checked_line(object);
}

Result<NumberedRules> parse_rules(const std::string& text, uint64_t n, const std::string& key) {
  return with_name(key, rules_of(text, n));
}

Result<NumberedRules> read_rules(io::ObjectStore& store, const io::RequestLimits& limits) {
  std::set<uint64_t> listed;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    if (const auto n = parse_rules_key(object.key)) listed.insert(*n);
    return success();
  };
  TRY(io::for_each_object(store, kRules, note, limits));
  if (listed.empty()) return NumberedRules{};
  const uint64_t n = *listed.rbegin();
  const std::string object = store.url() + "/" + rules_key(n);
  if (listed.size() != n) {
    return Error(EIO, fmt::format("{}: there are {} rules before it, and {} are listed: the list is not whole", object,
                                  n - 1, listed.size() - 1));
  }
  TRY_ASSIGN(const std::string text, io::get_text(store, rules_key(n), kMostRulesBytes, limits));
  return parse_rules(text, n, object);
}

Result<NumberedRules> change_rules(io::ObjectStore& store, const std::string& host,
                                   const std::function<Result<>(RemoteRules&)>& change,
                                   const io::RequestLimits& limits) {
  for (int tries = 0; tries < kMostTries; ++tries) {
    TRY_ASSIGN(NumberedRules numbered, read_rules(store, limits));
    const RemoteRules before = numbered.rules;
    TRY(change(numbered.rules));
    if (numbered.rules == before) return numbered;
    ++numbered.n;
    numbered.host = host;
    TRY_ASSIGN(const bool made, io::make_object(store, rules_key(numbered.n), text_of(numbered), limits));
    if (made) return numbered;
  }
  return Error(EAGAIN, store.url() + ": others change its rules at this moment; try again");
}

std::vector<RuleDecision> decide_by_rules(const RemoteRules& rules, const std::vector<CommittedStep>& steps, Time now) {
  std::vector<RuleDecision> decisions(steps.size());
  std::vector<size_t> standing;  // the last commit first
  for (size_t at = steps.size(); at-- > 0;) {
    if (!steps[at].gone) standing.push_back(at);
  }
  std::vector<uint64_t> newer(steps.size());
  for (uint64_t place = 0; place < standing.size(); ++place) newer[standing[place]] = place;
  std::ranges::stable_sort(standing, std::greater(), [&](size_t at) { return steps[at].number(); });
  for (uint64_t place = 0; place < standing.size(); ++place) {
    const size_t at = standing[place];
    decisions[at] = decide(rules, steps[at], std::min(newer[at], place), now);
  }
  return decisions;
}

bool would_keep(const RemoteRules& rules, uint64_t number, uint64_t higher) {
  if (!rules.has_keep_rule() || rules.keep_for || higher == 0) return true;
  return higher < rules.keep_last.value_or(0) || (rules.keep_every && number % *rules.keep_every == 0);
}

}  // namespace ckptfs::meta::remote
