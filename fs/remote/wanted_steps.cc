#include "fs/remote/wanted_steps.h"

#include <algorithm>

#include "meta/names.h"
#include "meta/remote/commit.h"

namespace ckptfs::fs {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::minutes kReadAgain{1};

uint64_t number_of_tag(const std::string& tag) { return meta::last_number_in(tag).value_or(0); }

}  // namespace

Result<> WantedSteps::update(io::ObjectStore& remote, const io::RequestLimits& limits) {
  if (read_ && Clock::now() - *read_ < kReadAgain) return success();
  TRY_ASSIGN(const auto rules, meta::remote::read_rules(remote, limits));
  rules_ = rules.rules;
  numbers_.clear();
  tags_.clear();
  if (rules_.has_keep_rule()) {
    TRY_ASSIGN(const auto steps, meta::remote::list_steps(remote, limits));
    for (const auto& step : steps) {
      if (step.gone) continue;
      numbers_.push_back(number_of_tag(step.decision.tag));
      tags_.insert(step.decision.tag);
    }
    std::ranges::sort(numbers_);
  }
  read_ = Clock::now();
  return success();
}

Result<std::string> WantedSteps::why_not(io::ObjectStore& remote, const std::string& tag,
                                         const io::RequestLimits& limits) {
  TRY(update(remote, limits));
  const uint64_t number = number_of_tag(tag);
  const auto higher = static_cast<uint64_t>(numbers_.end() - std::ranges::upper_bound(numbers_, number));
  if (tags_.contains(tag) || meta::remote::would_keep(rules_, number, higher)) return std::string();
  std::string rules;
  for (const auto& [rule, value] : meta::remote::texts_of(rules_)) {
    rules += (rules.empty() ? "" : ", ") + rule + "=" + value;
  }
  return "the remote's rules would not keep it (" + rules + ", and " + std::to_string(higher) +
         " newer steps are there); `ckptfs push` pushes it all the same";
}

}  // namespace ckptfs::fs
