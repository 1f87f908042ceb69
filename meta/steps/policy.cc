#include "meta/steps/policy.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "io/duration.h"
#include "io/image_file.h"
#include "io/text.h"
#include "meta/names.h"
#include "meta/time.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::meta {
namespace {

constexpr const char* kPolicyXattr = "user.ckptfs.policy";

std::optional<uint64_t> parse_count(const std::string& text) {
  const auto count = io::parse_number<uint64_t>(text);
  return count && *count > 0 ? count : std::nullopt;
}

std::optional<std::chrono::seconds> parse_time(const std::string& text) {
  const auto time = io::parse_duration(text);
  return time && time.value().count() > 0 ? std::optional(time.value()) : std::nullopt;
}

std::optional<uint64_t> parse_bytes(const std::string& text) {
  if (const auto bytes = parse_count(text)) return bytes;
  const auto size = io::parse_size(text);
  return size ? std::optional(size.value()) : std::nullopt;
}

// "eval_loss:min:2". The name of a metric may have colons of its own.
std::optional<KeepBest> parse_best(const std::string& text) {
  const size_t last = text.rfind(':');
  if (last == std::string::npos || last == 0) return std::nullopt;
  const size_t middle = text.rfind(':', last - 1);
  if (middle == std::string::npos || middle == 0) return std::nullopt;
  const std::string side = text.substr(middle + 1, last - middle - 1);
  const auto count = parse_count(text.substr(last + 1));
  if ((side != "min" && side != "max") || !count) return std::nullopt;
  return KeepBest{text.substr(0, middle), side == "min", *count};
}

std::optional<KeepFull> parse_full(const std::string& text) {
  if (const auto count = parse_count(text)) return KeepFull{*count, std::nullopt};
  if (const auto time = parse_time(text)) return KeepFull{std::nullopt, *time};
  return std::nullopt;
}

std::optional<std::string> parse_names(const std::string& text) {
  const bool fits = !text.empty() && text.size() <= kMaximumName && text.find('/') == std::string::npos;
  return fits ? std::optional(text) : std::nullopt;
}

std::optional<std::string> parse_complete_when(const std::string& text) {
  const std::string path = '/' + text + '/';
  const bool inside = path.find("//") == std::string::npos && path.find("/../") == std::string::npos &&
                      path.find("/./") == std::string::npos;
  return inside && text.size() <= kMaximumName ? std::optional(text) : std::nullopt;
}

std::optional<bool> parse_switch(const std::string& text) { return text == "1" ? std::optional(true) : std::nullopt; }

std::optional<std::string> parse_type(const std::string& text) {
  return text == "same" || text == "bf16" || text == "fp16" || text == "fp32" ? std::optional(text) : std::nullopt;
}

std::optional<std::string> parse_push(const std::string& text) {
  return text == "quiet" || text == "manual" ? std::optional(text) : std::nullopt;
}

Error no_such_rule(const std::string& name) {
  return Error(EINVAL, name + ": there is no such rule; `ckptfs policy --help` lists them");
}

// A rule, the function that sets it in a policy from its text, and what it takes.
struct Rule {
  std::string_view name;
  bool (*set)(Policy&, const std::string&);
  const char* takes;
};

template <auto Member, auto Parse>
bool set_member(Policy& policy, const std::string& text) {
  const auto value = Parse(text);
  if (value) policy.*Member = *value;
  return value.has_value();
}

constexpr const char* kCounts = "a whole number from 1 up";
constexpr const char* kTimes = "a duration, as in 7d, 36h, 90m or 45s";
constexpr const char* kBytes = "bytes, as in 500G or 2T";
constexpr std::array<Rule, 16> kRules{{
    {"keep_last", set_member<&Policy::keep_last, parse_count>, kCounts},
    {"keep_every", set_member<&Policy::keep_every, parse_count>, kCounts},
    {"keep_for", set_member<&Policy::keep_for, parse_time>, kTimes},
    {"keep_best", set_member<&Policy::keep_best, parse_best>, "NAME:min:N or NAME:max:N, as in eval_loss:min:2"},
    {"keep_partial", set_member<&Policy::keep_partial, parse_time>, kTimes},
    {"keep_unknown", set_member<&Policy::keep_unknown, parse_time>, kTimes},
    {"max_bytes", set_member<&Policy::max_bytes, parse_bytes>, kBytes},
    {"min_free", set_member<&Policy::min_free, parse_bytes>, kBytes},
    {"seal_after", set_member<&Policy::seal_after, parse_time>, kTimes},
    {"set_aside", set_member<&Policy::set_aside, parse_switch>, "1; take the rule away to switch it off"},
    {"keep_full", set_member<&Policy::keep_full, parse_full>,
     "a whole number from 1 up, or a duration, as in 7d or 36h"},
    {"thin_to", set_member<&Policy::thin_to, parse_type>, "same, bf16, fp16 or fp32"},
    {"steps", set_member<&Policy::steps, parse_names>, "a pattern for the names of folders, as in 'iter_*'"},
    {"complete_when", set_member<&Policy::complete_when, parse_complete_when>,
     "the path of a file in the step that is written last, `quiet`, or a file that names the newest step: "
     "latest, latest_universal or latest_checkpointed_iteration.txt"},
    {"push", set_member<&Policy::push, parse_push>, "quiet or manual"},
    {"hold_unpushed", set_member<&Policy::hold_unpushed, io::parse_number<uint64_t>>, "a whole number"},
}};

const Rule* find_rule(std::string_view name) {
  const auto* const rule = std::ranges::find(kRules, name, &Rule::name);
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

Result<SeriesPolicy> decode(const std::string& text) {
  const Error damaged(EIO, "the index holds a damaged policy");
  SeriesPolicy policy;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) return damaged;
    const std::string kind = line.substr(0, space), rest = line.substr(space + 1);
    if (kind == "changed" || kind == "left_alone") {
      const auto time = io::parse_number<uint64_t>(rest);
      if (!time) return damaged;
      const timespec when = to_timespec(WallTime(std::chrono::nanoseconds(*time)));
      if (kind == "changed") policy.changed = when;
      if (kind == "left_alone") policy.left_alone = when;
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

}  // namespace

bool tell_same_steps(const PolicyText& one, const PolicyText& other) {
  const auto same = [&](const char* rule) { return text_in(one, rule) == text_in(other, rule); };
  return same("steps") && same("complete_when");
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
    if (rule->set(policy, value)) continue;
    return Error(EINVAL, name + ": '" + value + "' is no value for it; it takes " + rule->takes);
  }
  return policy;
}

std::optional<double> parse_metric(const std::string& text) {
  const auto number = io::parse_number<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
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
  TRY_ASSIGN(const auto text, none_if_gone(store.index().xattr(series, kPolicyXattr)));
  return text ? decode(*text) : SeriesPolicy();
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
    if (wall_time(policy.changed) != wall_time(known.changed) || policy.left_alone) return false;
    policy.left_alone = since;
    return true;
  });
}

Result<> arm(Store& store, InodeNumber series, const SeriesPolicy& known) {
  TRY(change_policy(store, series, [&](SeriesPolicy& policy) {
    if (wall_time(policy.changed) != wall_time(known.changed) || policy.is_armed()) return false;
    policy.armed = policy.set;
    policy.armed_by = policy.set_by;
    return true;
  }));
  return store.tree().sync();
}

}  // namespace ckptfs::meta
