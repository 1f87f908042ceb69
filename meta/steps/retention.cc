#include "meta/steps/retention.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace ckptfs::meta {
namespace {

// If a step's date is later than this from now, the wall clock was ahead when it was written, or is behind now.
constexpr std::chrono::minutes kFuture{1};

class Judge {
 public:
  Judge(const Policy& policy, const std::vector<StepFacts>& steps, const Moment& now, const RoomWithout& room)
      : policy_(policy), steps_(steps), now_(now), room_(room), decisions_(steps.size()) {
    protections_ = find_protections(steps, policy.hold_unpushed);
    for (size_t at = 0; at < steps.size(); ++at) {
      if (steps[at].is_complete()) complete_.push_back(at);
      if (steps[at].is_whole()) whole_.push_back(at);
      decisions_[at].reasons = protections_[at];
    }
    complete_ranks_ = rank(steps, complete_);
    ranks_ = rank(steps, whole_);
  }

  Result<Judgement> run() {
    warn_of_future();
    apply_keep_rules();
    for (size_t at = 0; at < steps_.size(); ++at) {
      if (steps_[at].completeness == formats::Completeness::incomplete) judge_incomplete(at);
      if (steps_[at].completeness == formats::Completeness::unknown) judge_unknown(at);
      if (!decisions_[at].reasons.empty()) continue;
      decisions_[at] = {false, {Reason::no_rule_keeps_it}};
    }
    if (policy_.keep_full) apply_keep_full(*policy_.keep_full);
    TRY(apply_caps());
    return Judgement{std::move(decisions_), std::move(warnings_)};
  }

 private:
  bool is_younger_than(size_t at, std::chrono::seconds age) const {
    return now_.wall - steps_[at].completed < age || now_.store - steps_[at].seen < age;
  }

  void warn_of_future() {
    const auto is_future = [this](size_t at) { return steps_[at].completed > now_.wall + kFuture; };
    const auto count = std::ranges::count_if(whole_, is_future);
    if (count == 0) return;
    const StepFacts& one = steps_[*std::ranges::find_if(whole_, is_future)];
    warnings_.push_back(one.tag + (count == 1 ? " is" : " and " + std::to_string(count - 1) + " more are") +
                        " dated in the future (was the clock set back?): until then no rule takes it for old");
  }

  void keep(size_t step, Reason reason) { decisions_[step].reasons.push_back(reason); }

  void apply_keep_rules() {
    if (!policy_.has_keep_rule()) {
      for (const size_t at : whole_) keep(at, Reason::no_rule);
      return;
    }
    for (const size_t at : whole_) {
      if (ranks_[at] < policy_.keep_last.value_or(0)) keep(at, Reason::keep_last);
      if (policy_.keep_every && steps_[at].number % *policy_.keep_every == 0) keep(at, Reason::keep_every);
      if (policy_.keep_for && is_younger_than(at, *policy_.keep_for)) keep(at, Reason::keep_for);
    }
    if (policy_.keep_best) keep_best(*policy_.keep_best);
  }

  // Of steps with equal metrics the newer is better. A step without a metric, or with NaN, is not among the best.
  void keep_best(const KeepBest& rule) {
    std::vector<size_t> measured;
    for (const size_t at : whole_) {
      if (steps_[at].metric && !std::isnan(*steps_[at].metric)) measured.push_back(at);
    }
    if (measured.empty() && !whole_.empty()) {
      for (const size_t at : whole_) keep(at, Reason::keep_best);
      warnings_.push_back("keep_best keeps all: no step has the metric " + rule.metric);
      return;
    }
    const auto badness = [&](size_t at) { return rule.smallest ? *steps_[at].metric : -*steps_[at].metric; };
    std::ranges::stable_sort(measured, {}, badness);
    measured.resize(static_cast<size_t>(std::min<uint64_t>(rule.count, measured.size())));
    for (const size_t at : measured) keep(at, Reason::keep_best);
  }

  void apply_keep_full(const KeepFull& rule) {
    for (const size_t at : complete_) {
      Decision& decision = decisions_[at];
      if (!decision.stays) continue;
      const bool full = complete_ranks_[at] < rule.count.value_or(0) || (rule.age && is_younger_than(at, *rule.age));
      decision.full_because = full                       ? "keep_full"
                              : protections_[at].empty() ? steps_[at].not_thinned
                                                         : name_of(protections_[at].front());
      decision.thins = decision.full_because.empty();
    }
  }

  // Is it newer than every complete one, in one of the two orders?
  bool is_newest(size_t at) const {
    const auto is_first = [&](auto is_newer) {
      return std::ranges::none_of(complete_, [&](size_t one) { return is_newer(steps_[one], steps_[at]); });
    };
    return is_first(is_higher) || is_first(is_seen_later);
  }

  // That it is unknown protects it, unless the rule says for how long.
  void judge_unknown(size_t at) {
    const bool only_unknown = protections_[at] == std::vector{Reason::unknown} && !steps_[at].untold;
    if (!policy_.keep_unknown || !only_unknown || is_newest(at) || is_younger_than(at, *policy_.keep_unknown)) return;
    decisions_[at] = {false, {Reason::keep_unknown_is_over}};
  }

  void judge_incomplete(size_t at) {
    if (!policy_.keep_partial) {
      keep(at, Reason::incomplete);
    } else if (is_newest(at) || is_younger_than(at, *policy_.keep_partial)) {
      keep(at, Reason::keep_partial);
    } else if (protections_[at].empty()) {
      decisions_[at] = {false, {Reason::keep_partial_is_over}};
    }
  }

  Result<bool> is_met_without(const std::vector<size_t>& oldest, size_t count, uint64_t cap,
                              bool (*met)(const Room&, uint64_t)) const {
    std::vector<size_t> without(oldest.begin(), oldest.begin() + static_cast<std::ptrdiff_t>(count));
    for (size_t at = 0; at < decisions_.size(); ++at) {
      if (!decisions_[at].stays) without.push_back(at);
    }
    std::ranges::sort(without);
    TRY_ASSIGN(const Room room, room_(without));
    return met(room, cap);
  }

  // Removes as few of the oldest steps as it takes to meet the cap. Each removal makes room, so a binary search finds
  // how many.
  Result<> apply_cap(Reason reason, const std::optional<uint64_t>& cap, bool (*met)(const Room&, uint64_t)) {
    if (!cap) return success();
    std::vector<size_t> oldest;
    std::copy_if(whole_.rbegin(), whole_.rend(), std::back_inserter(oldest),
                 [this](size_t at) { return decisions_[at].stays && protections_[at].empty(); });
    size_t enough = oldest.size() + 1;  // more than there are means that not even all are enough
    for (size_t low = 0; low < enough;) {
      const size_t middle = low + (enough - low) / 2;
      TRY_ASSIGN(const bool is_met, is_met_without(oldest, middle, *cap, met));
      if (is_met) {
        enough = middle;
      } else {
        low = middle + 1;
      }
    }
    if (enough > oldest.size()) {
      warnings_.push_back(std::string(name_of(reason)) + " is not met, though all steps go that may");
      enough = oldest.size();
    }
    for (size_t at = 0; at < enough; ++at) decisions_[oldest[at]] = {false, {reason}};
    return success();
  }

  // Thinning makes room, too. But it takes its time, and a training needs the room: so as long as a step is to be
  // thinned, removals make half of it.
  Result<> apply_caps() {
    const bool thins = std::ranges::any_of(decisions_, &Decision::thins);
    std::optional<uint64_t> min_free = policy_.min_free;
    if (thins && min_free) *min_free /= 2;
    if (!thins) {
      TRY(apply_cap(Reason::max_bytes, policy_.max_bytes,
                    [](const Room& room, uint64_t cap) { return room.series <= cap; }));
    }
    return apply_cap(Reason::min_free, min_free, [](const Room& room, uint64_t cap) { return room.free >= cap; });
  }

  const Policy& policy_;
  const std::vector<StepFacts>& steps_;
  const Moment now_;
  const RoomWithout& room_;
  std::vector<size_t> complete_;        // the newest first
  std::vector<size_t> whole_;           // likewise, with those that hold weights only
  std::vector<size_t> complete_ranks_;  // among complete_; a step each
  std::vector<size_t> ranks_;           // among whole_; a step each
  Protections protections_;
  std::vector<Decision> decisions_;
  std::vector<std::string> warnings_;
};

}  // namespace

Result<Judgement> judge(const Policy& policy, const std::vector<StepFacts>& steps, const Moment& now,
                        const RoomWithout& room) {
  return Judge(policy, steps, now, room).run();
}

}  // namespace ckptfs::meta
