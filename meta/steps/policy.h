// The policy of a series: which of its steps rotation keeps. A rule is set by its text, as the xattr
// of that name has it; an empty text takes it away.
//
// A change does not act at once. It is *armed* by the next step that completes, once the series has been left alone for
// the quiet time after the change: until then what was armed before goes on to run. So a policy that comes with a copy
// never acts on the directory while it is being filled.
//
// Whoever may write to the directory may set a rule, but a rule removes only what its setter could remove: each is kept
// with the credentials of who set it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meta/store/store.h"
#include "meta/tree/access.h"

namespace ckptfs::meta {

struct KeepBest {
  std::string metric;
  bool smallest = false;  // is best
  uint64_t count = 0;
};

// Of the complete steps so many, the newest, or those that are younger than so long.
struct KeepFull {
  std::optional<uint64_t> count;
  std::optional<std::chrono::seconds> age;
};

// In which trainers write, beside the steps, from which step they resume: DeepSpeed's, its universal checkpoint's,
// Megatron's.
inline constexpr std::array kTrackers{"latest", "latest_universal", "latest_checkpointed_iteration.txt"};
inline constexpr const char* kWhenQuiet = "quiet";  // of complete_when
inline constexpr uint64_t kHoldUnpushed = 2;        // where hold_unpushed is not set

// What is not set has no say.
struct Policy {
  std::optional<uint64_t> keep_last;
  std::optional<uint64_t> keep_every;
  std::optional<std::chrono::seconds> keep_for;
  std::optional<KeepBest> keep_best;
  std::optional<std::chrono::seconds> keep_partial;
  std::optional<std::chrono::seconds> keep_unknown;
  std::optional<uint64_t> max_bytes;  // exclusive bytes of the series
  std::optional<uint64_t> min_free;   // bytes of the store
  std::optional<std::chrono::seconds> seal_after;
  bool set_aside = false;              // acts at once, since it removes nothing: fs/steps/set_aside.h
  std::optional<KeepFull> keep_full;   // the other steps that stay are thinned (meta/steps/thin.h)
  std::optional<std::string> thin_to;  // the type of their weights: "same" (the default), "bf16", ...
  // What cannot be told by itself, and acts at once (meta/tree/step_detection.h). While such a change is not armed, no
  // rule removes a step.
  std::optional<std::string> steps;  // "iter_*": folders of such names are steps
  // A file of the step that is written last, one of kTrackers that names the step, or kWhenQuiet: once nobody writes.
  std::optional<std::string> complete_when;
  // Of a series with a remote (meta/remote/push.h).
  std::optional<std::string> push;        // when a step is pushed: "quiet" (the default), or "manual": when asked to
  std::optional<uint64_t> hold_unpushed;  // so many unpushed steps stay, the newest

  // Does any rule say which complete steps stay?
  bool has_keep_rule() const { return keep_last || keep_every || keep_for || keep_best; }
};

// "keep_last" -> "3"
using PolicyText = std::map<std::string, std::string, std::less<>>;

bool is_policy_rule(std::string_view name);
std::vector<std::string> policy_rules();
// EINVAL, in words, for an unknown rule or a bad value.
Result<Policy> parse_policy(const PolicyText& text);

// The value of metric.NAME; none: no finite number.
std::optional<double> parse_metric(const std::string& text);
// A xattr of ours of an inode, that no seal forbids; an empty value takes it away. Not durable on return.
Result<> set_control_xattr(Store& store, InodeNumber inode, const std::string& name, const std::string& value);

// By rule. Who took a rule away stays, too, until somebody sets it or all are taken away: others' rules take more then.
using RuleSetters = std::map<std::string, Credentials, std::less<>>;

// Are the rules about the same steps: have both the same `steps` and `complete_when`?
bool tell_same_steps(const PolicyText& one, const PolicyText& other);

struct SeriesPolicy {
  PolicyText set;    // as the xattrs are
  PolicyText armed;  // what runs
  RuleSetters set_by;
  RuleSetters armed_by;
  timespec changed{};                  // when `set` was, last
  std::optional<timespec> left_alone;  // since the change: a step that completes from then on arms it

  bool is_armed() const { return set == armed && set_by == armed_by; }
};
// Empty for a series without one.
Result<SeriesPolicy> policy_of(const Store& store, InodeNumber series);
// Makes the directory a series. EINVAL, in words: a bad value, or no directory that can be a series. That `who` may
// write to it has been checked.
Result<> set_rules(Store& store, InodeNumber series, const PolicyText& rules, const Credentials& who);
// Could each of those who made the rules what they are remove the step by hand?
Result<bool> may_rules_remove(const Tree& tree, const PolicyText& rules, const RuleSetters& setters, InodeNumber step);
// Where `policy` still is what it was changed to at `policy.changed`.
Result<> note_left_alone(Store& store, InodeNumber series, const SeriesPolicy& policy, timespec since);
Result<> arm(Store& store, InodeNumber series, const SeriesPolicy& policy);

}  // namespace ckptfs::meta
