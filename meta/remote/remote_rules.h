// The rules of a remote: which of its steps stay. They lie in the remote, so that every machine knows the same ones:
// rules/<n>, made and never changed, of which the highest n counts. docs/remote-format.md has the fields.
//
// A step stays if any of the keep rules that are set keeps it; if none is set, every step stays. The newest step and a
// pinned one always stay. Newer means: saved later (Order), or with a higher number. As on a mount
// (meta/steps/retention.h) a step goes only if it is old in both orders. Stateless; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"

namespace ckptfs::meta::remote {

struct RemoteRules {
  std::optional<uint64_t> keep_last;
  std::optional<uint64_t> keep_every;  // of the number in the step's name; a name without one counts as 0
  std::optional<std::chrono::seconds> keep_for;
  std::set<std::string> pins;  // DecisionName::text(): what a step is called may change

  bool has_keep_rule() const { return keep_last || keep_every || keep_for; }
  bool operator==(const RemoteRules&) const = default;
};

// "keep_last" -> "20": of the keep rules that are set.
std::map<std::string, std::string> texts_of(const RemoteRules& rules);
// An empty value takes the rule away. EINVAL, in words: there is no such rule, or no such value of it.
Result<> set_rule(RemoteRules& rules, const std::string& name, const std::string& value);

struct NumberedRules {
  uint64_t n = 0;  // 0: none were ever set
  RemoteRules rules;
  std::string host;  // that set them
};
std::string text_of(const NumberedRules& rules);
// EBADMSG, in words; EPROTO for another version. `key`: for messages.
Result<NumberedRules> parse_rules(const std::string& text, uint64_t n, const std::string& key);

// EIO, in words, which can pass: the list is not whole.
Result<NumberedRules> read_rules(io::ObjectStore& store, const io::RequestLimits& limits);
// Reads them, has them changed, and writes them. If somebody else does the same at that moment, once more.
Result<NumberedRules> change_rules(io::ObjectStore& store, const std::string& host,
                                   const std::function<Result<>(RemoteRules&)>& change,
                                   const io::RequestLimits& limits);

struct RuleDecision {
  bool stays = true;
  std::string why;  // "keep_last=20, pinned"; or which rules do not keep it
  // Only keep_for keeps it: until then.
  std::optional<std::chrono::system_clock::time_point> until;
};
// One for each step. `steps`: as list_steps() returns them. What is gone already has an empty one. `now`: by the
// store's clock.
std::vector<RuleDecision> decide_by_rules(const RemoteRules& rules, const std::vector<CommittedStep>& steps,
                                          std::chrono::system_clock::time_point now);

// Would the rules keep a step with this number, if so many steps with a higher one stand?
bool would_keep(const RemoteRules& rules, uint64_t number, uint64_t higher);

}  // namespace ckptfs::meta::remote
