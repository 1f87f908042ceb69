#include "meta/steps/policy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "io/duration.h"
#include "io/image_file.h"
#include "meta/names.h"
#include "meta/time.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::meta {
namespace {

constexpr const char* kPolicyXattr = "user.ckptfs.policy";

Error wrong(std::string_view rule, const std::string& value, const std::string& wanted) {
  return Error(EINVAL, std::string(rule) + ": '" + value + "' is no value for it; it takes " + wanted);
}

std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

Result<uint64_t> parse_count(std::string_view rule, const std::string& text) {
  const auto count = number_in(text);
  if (!count || *count == 0) return wrong(rule, text, "a whole number from 1 up");
  return *count;
}

Result<std::chrono::seconds> parse_time(std::string_view rule, const std::string& text) {
  auto time = io::parse_duration(text);
  if (!time || time.value().count() == 0) return wrong(rule, text, "a duration, as in 7d, 36h, 90m or 45s");
  return time;
}

Result<uint64_t> parse_bytes(std::string_view rule, const std::string& text) {
  if (const auto bytes = number_in(text); bytes && *bytes > 0) return *bytes;
  auto size = io::parse_size(text);
  if (!size) return wrong(rule, text, "bytes, as in 500G or 2T");
  return size;
}

Result<bool> parse_switch(std::string_view rule, const std::string& text) {
  if (text == "1") return true;
  return wrong(rule, text, "1; take the rule away to switch it off");
}

// "eval_loss:min:2". The name of a metric may have colons of its own.
Result<KeepBest> parse_best(std::string_view rule, const std::string& text) {
  const Error error = wrong(rule, text, "NAME:min:N or NAME:max:N, as in eval_loss:min:2");
  const size_t last = text.rfind(':');
  if (last == std::string::npos || last == 0) return error;
  const size_t middle = text.rfind(':', last - 1);
  if (middle == std::string::npos || middle == 0) return error;
  const std::string side = text.substr(middle + 1, last - middle - 1);
  const auto count = number_in(std::string_view(text).substr(last + 1));
  if ((side != "min" && side != "max") || !count || *count == 0) return error;
  return KeepBest{text.substr(0, middle), side == "min", *count};
}

// A whole number, or a duration.
Result<KeepFull> parse_full(std::string_view rule, const std::string& text) {
  if (const auto count = number_in(text); count && *count > 0) return KeepFull{*count, std::nullopt};
  auto time = io::parse_duration(text);
  if (time && time.value().count() > 0 && !number_in(text)) return KeepFull{std::nullopt, time.value()};
  return wrong(rule, text, "a whole number from 1 up, or a duration, as in 7d or 36h");
}

Result<std::string> parse_type(std::string_view rule, const std::string& text) {
  if (text == "same" || text == "bf16" || text == "fp16" || text == "fp32") return text;
  return wrong(rule, text, "same, bf16, fp16 or fp32");
}

Result<uint64_t> parse_hold(std::string_view rule, const std::string& text) {
  const auto count = number_in(text);
  return count ? Result<uint64_t>(*count) : wrong(rule, text, "a whole number");
}

Result<std::string> parse_push(std::string_view rule, const std::string& text) {
  if (text == "quiet" || text == "manual") return text;
  return wrong(rule, text, "quiet or manual");
}

Result<std::string> parse_names(std::string_view rule, const std::string& text) {
  if (!text.empty() && text.size() <= kMaximumName && text.find('/') == std::string::npos) return text;
  return wrong(rule, text, "a pattern for the names of folders, as in 'iter_*'");
}

Result<std::string> parse_complete_when(std::string_view rule, const std::string& text) {
  const std::string path = '/' + text + '/';
  const bool inside = path.find("//") == std::string::npos && path.find("/../") == std::string::npos &&
                      path.find("/./") == std::string::npos;
  if (inside && text.size() <= kMaximumName) return text;
  return wrong(rule, text,
               "the path of a file in the step that is written last, `quiet`, or a file that names the newest step: "
               "latest, latest_universal or latest_checkpointed_iteration.txt");
}

Error no_such_rule(const std::string& name) {
  return Error(EINVAL, name + ": there is no such rule; `ckptfs policy --help` lists them");
}

// A rule, and the function that sets it in a policy from its text.
struct Rule {
  std::string_view name;
  Result<> (*set)(Policy&, std::string_view, const std::string&);
};

template <auto Member, auto Parse>
Result<> set_member(Policy& policy, std::string_view rule, const std::string& text) {
  TRY_ASSIGN(policy.*Member, Parse(rule, text));
  return success();
}

constexpr std::array<Rule, 16> kRules{{
    {"keep_last", set_member<&Policy::keep_last, parse_count>},
    {"keep_every", set_member<&Policy::keep_every, parse_count>},
    {"keep_for", set_member<&Policy::keep_for, parse_time>},
    {"keep_best", set_member<&Policy::keep_best, parse_best>},
    {"keep_partial", set_member<&Policy::keep_partial, parse_time>},
    {"keep_unknown", set_member<&Policy::keep_unknown, parse_time>},
    {"max_bytes", set_member<&Policy::max_bytes, parse_bytes>},
    {"min_free", set_member<&Policy::min_free, parse_bytes>},
    {"seal_after", set_member<&Policy::seal_after, parse_time>},
    {"set_aside", set_member<&Policy::set_aside, parse_switch>},
    {"keep_full", set_member<&Policy::keep_full, parse_full>},
    {"thin_to", set_member<&Policy::thin_to, parse_type>},
    {"steps", set_member<&Policy::steps, parse_names>},
    {"complete_when", set_member<&Policy::complete_when, parse_complete_when>},
    {"push", set_member<&Policy::push, parse_push>},
    {"hold_unpushed", set_member<&Policy::hold_unpushed, parse_hold>},
}};

const Rule* find_rule(std::string_view name) {
  const auto* const rule =
      std::find_if(kRules.begin(), kRules.end(), [name](const Rule& one) { return one.name == name; });
  return rule == kRules.end() ? nullptr : rule;
}

// "keep_last 1000 1000 27 100": the rule, then the uid, the gid and the supplementary groups of the user who set it.
std::string encode_setter(const std::string& rule, const Credentials& who) {
  std::string text = rule + ' ' + std::to_string(who.uid) + ' ' + std::to_string(who.gid);
  for (const uint32_t group : who.groups) text += ' ' + std::to_string(group);
  return text;
}

bool decode_setter(const std::string& text, RuleSetters& setters) {
  std::istringstream fields(text);
  std::string rule;
  Credentials who;
  if (!(fields >> rule >> who.uid >> who.gid)) return false;
  for (uint32_t group = 0; fields >> group;) who.groups.push_back(group);
  setters[rule] = std::move(who);
  return fields.eof();
}

// Each field is a line: "set keep_last=3", "set_by keep_last 1000 1000", "armed keep_last=5", "armed_by keep_last 0 0",
// "changed 12", "left_alone 34" (ns since 1970).
std::string encode(const SeriesPolicy& policy) {
  std::ostringstream text;
  for (const auto& [rule, value] : policy.set) text << "set " << rule << '=' << value << '\n';
  for (const auto& [rule, value] : policy.armed) text << "armed " << rule << '=' << value << '\n';
  for (const auto& [rule, who] : policy.set_by) text << "set_by " << encode_setter(rule, who) << '\n';
  for (const auto& [rule, who] : policy.armed_by) text << "armed_by " << encode_setter(rule, who) << '\n';
  text << "changed " << nanoseconds(policy.changed) << '\n';
  if (policy.left_alone) text << "left_alone " << nanoseconds(*policy.left_alone) << '\n';
  return text.str();
}

timespec from_nanoseconds(uint64_t time) {
  constexpr uint64_t kSecond = 1'000'000'000;
  return {static_cast<time_t>(time / kSecond), static_cast<long>(time % kSecond)};
}

Result<SeriesPolicy> decode(const std::string& text) {
  const Error damaged(EIO, "the index holds a damaged policy");
  SeriesPolicy policy;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) return damaged;
    const std::string kind = line.substr(0, space), rest = line.substr(space + 1);
    if (kind == "changed" || kind == "left_alone") {
      const auto time = number_in(rest);
      if (!time) return damaged;
      if (kind == "changed") policy.changed = from_nanoseconds(*time);
      if (kind == "left_alone") policy.left_alone = from_nanoseconds(*time);
      continue;
    }
    if (kind == "set_by" || kind == "armed_by") {
      if (!decode_setter(rest, kind == "set_by" ? policy.set_by : policy.armed_by)) return damaged;
      continue;
    }
    const size_t equals = rest.find('=');
    if (equals == std::string::npos || (kind != "set" && kind != "armed")) return damaged;
    (kind == "set" ? policy.set : policy.armed)[rest.substr(0, equals)] = rest.substr(equals + 1);
  }
  return policy;
}

// Empty: the rule is not set.
std::string text_in(const PolicyText& text, std::string_view rule) {
  const auto found = text.find(rule);
  return found == text.end() ? std::string() : found->second;
}

// Changes the policy that a series has now.
template <class Change>
Result<> change_policy(Store& store, InodeNumber series, const Change& change_it) {
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(InodeRecord record, store.index().inode(series));
  if (record.nlink == 0) return Error(ENOENT);
  TRY_ASSIGN(SeriesPolicy policy, policy_of(store, series));
  if (!change_it(policy)) return success();
  record.flags |= kSeries;
  const DeclaredSteps declared{text_in(policy.set, "steps"), text_in(policy.set, "complete_when")};
  if (declared.names.empty() && declared.complete_when.empty()) {
    if ((record.flags & kDeclared) != 0) change.batch.erase_xattr(series, kDeclaredXattr);
    record.flags &= ~kDeclared;
  } else {
    record.flags |= kDeclared;
    change.batch.put_xattr(series, kDeclaredXattr, text_of(declared));
  }
  change.batch.put(series, record);
  change.batch.put_xattr(series, kPolicyXattr, encode(policy));
  return store.tree().commit(std::move(change));
}

bool same_time(const timespec& a, const timespec& b) { return !later(a, b) && !later(b, a); }

}  // namespace

bool SeriesPolicy::tells_other_steps() const {
  return !armed.empty() && (text_in(set, "steps") != text_in(armed, "steps") ||
                            text_in(set, "complete_when") != text_in(armed, "complete_when"));
}

bool is_policy_rule(std::string_view name) { return find_rule(name) != nullptr; }

std::vector<std::string> policy_rules() {
  std::vector<std::string> names;
  for (const Rule& rule : kRules) names.emplace_back(rule.name);
  return names;
}

Result<Policy> parse_policy(const PolicyText& text) {
  Policy policy;
  for (const auto& [name, value] : text) {
    const Rule* const rule = find_rule(name);
    if (rule == nullptr) return no_such_rule(name);
    TRY(rule->set(policy, name, value));
  }
  return policy;
}

std::optional<double> parse_metric(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size() && std::isfinite(number);
  return whole ? std::optional(number) : std::nullopt;
}

Result<> set_control_xattr(Store& store, InodeNumber inode, const std::string& name, const std::string& value) {
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(const InodeRecord record, store.index().inode(inode));
  if (record.nlink == 0) return Error(ENOENT);
  if (value.empty()) {
    change.batch.erase_xattr(inode, name);
  } else {
    change.batch.put_xattr(inode, name, value);
  }
  return store.tree().commit(std::move(change));
}

Result<SeriesPolicy> policy_of(const Store& store, InodeNumber series) {
  const auto text = store.index().xattr(series, kPolicyXattr);
  if (!text && text.error().errno_value() == ENOENT) return SeriesPolicy();
  if (!text) return text.error();
  return decode(text.value());
}

Result<> set_rules(Store& store, InodeNumber series, const PolicyText& rules, const Credentials& who) {
  TRY(check_series(store.tree(), series));
  for (const auto& [rule, value] : rules) {
    if (!is_policy_rule(rule)) return no_such_rule(rule);
    if (value.find('\n') != std::string::npos) return Error(EINVAL, rule + ": its value is one line");
    if (!value.empty()) TRY(parse_policy({{rule, value}}));
  }
  TRY(change_policy(store, series, [&](SeriesPolicy& policy) {
    const PolicyText before = policy.set;
    const RuleSetters before_by = policy.set_by;
    for (const auto& [rule, value] : rules) {
      if (value.empty()) {
        policy.set.erase(rule);
      } else {
        policy.set[rule] = value;
      }
      policy.set_by[rule] = who.uid == 0 ? Credentials() : who;
    }
    if (policy.set.empty()) policy.set_by.clear();
    if (policy.set == before && policy.set_by == before_by) return false;
    policy.changed = now();
    policy.left_alone.reset();
    return true;
  }));
  return store.tree().sync();
}

Result<bool> may_rules_remove(const Tree& tree, const PolicyText& rules, const RuleSetters& setters, InodeNumber step) {
  for (const auto& [rule, value] : rules) {
    if (!setters.contains(rule)) return false;
  }
  for (const auto& [rule, who] : setters) {
    const auto may = check_removal(tree, who, step);
    if (!may && may.error().errno_value() != EACCES && may.error().errno_value() != EPERM) return may.error();
    if (!may) return false;
  }
  return true;
}

Result<> note_left_alone(Store& store, InodeNumber series, const SeriesPolicy& known, timespec since) {
  return change_policy(store, series, [&](SeriesPolicy& policy) {
    if (!same_time(policy.changed, known.changed) || policy.left_alone) return false;
    policy.left_alone = since;
    return true;
  });
}

Result<> arm(Store& store, InodeNumber series, const SeriesPolicy& known) {
  TRY(change_policy(store, series, [&](SeriesPolicy& policy) {
    if (!same_time(policy.changed, known.changed) || policy.is_armed()) return false;
    policy.armed = policy.set;
    policy.armed_by = policy.set_by;
    return true;
  }));
  return store.tree().sync();
}

}  // namespace ckptfs::meta
