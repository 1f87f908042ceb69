#include "meta/steps/retention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

namespace ckptfs::meta {
namespace {

using formats::Completeness;

// If a step's date is later than this from now, the wall clock was ahead when it was written, or is behind now.
constexpr std::chrono::minutes kFuture{1};

class Judge {
 public:
  Judge(const Policy& policy, const std::vector<StepFacts>& steps, const Moment& now, const RoomWithout& room)
      : policy_(policy), steps_(steps), now_(now), room_(room), decisions_(steps.size()) {
    for (size_t at = 0; at < steps.size(); ++at) {
      if (steps[at].completeness == Completeness::complete) complete_.push_back(at);
      if (formats::is_whole(steps[at].completeness)) whole_.push_back(at);
      if (steps[at].unpushed) unpushed_.push_back(at);
    }
    complete_ranks_ = rank(complete_);
    ranks_ = rank(whole_);
    unpushed_ranks_ = rank(unpushed_);
    if (complete_.empty()) return;
    highest_ =
        *std::max_element(complete_.begin(), complete_.end(), [this](size_t a, size_t b) { return is_higher(b, a); });
    seen_last_ = *std::max_element(complete_.begin(), complete_.end(),
                                   [this](size_t a, size_t b) { return is_seen_later(b, a); });
  }

  Result<Judgement> run() {
    warn_of_future();
    protect();
    apply_keep_rules();
    for (size_t at = 0; at < steps_.size(); ++at) {
      if (steps_[at].completeness == Completeness::incomplete) judge_incomplete(at);
      if (!decisions_[at].reasons.empty()) continue;
      decisions_[at] = {false, {Reason::no_rule_keeps_it}};
    }
    if (policy_.keep_full) apply_keep_full(*policy_.keep_full);
    TRY(apply_caps());
    return Judgement{std::move(decisions_), std::move(warnings_)};
  }

 private:
  bool is_seen_later(size_t a, size_t b) const { return meta::is_seen_later(steps_[a], steps_[b]); }
  bool is_higher(size_t a, size_t b) const { return meta::is_higher(steps_[a], steps_[b]); }

  // Sorts these steps by rank, and returns the ranks, of all steps by their index. Of steps of equal rank the one that
  // was seen later comes first.
  std::vector<size_t> rank(std::vector<size_t>& among) const {
    std::vector<size_t> ranks(steps_.size());
    std::sort(among.begin(), among.end(), [this](size_t a, size_t b) { return is_higher(a, b); });
    for (size_t place = 0; place < among.size(); ++place) ranks[among[place]] = place;
    std::sort(among.begin(), among.end(), [this](size_t a, size_t b) { return is_seen_later(a, b); });
    for (size_t place = 0; place < among.size(); ++place) ranks[among[place]] = std::min(ranks[among[place]], place);
    std::stable_sort(among.begin(), among.end(), [&](size_t a, size_t b) { return ranks[a] < ranks[b]; });
    return ranks;
  }

  bool is_younger_than(size_t at, std::chrono::seconds age) const {
    return now_.wall - steps_[at].completed < age || now_.store - steps_[at].seen < age;
  }

  void warn_of_future() {
    const auto is_future = [this](size_t at) { return steps_[at].completed > now_.wall + kFuture; };
    const auto count = std::count_if(whole_.begin(), whole_.end(), is_future);
    if (count == 0) return;
    const StepFacts& one = steps_[*std::find_if(whole_.begin(), whole_.end(), is_future)];
    warnings_.push_back(one.tag + (count == 1 ? " is" : " and " + std::to_string(count - 1) + " more are") +
                        " dated in the future (was the clock set back?): until then no rule takes it for old");
  }

  void keep(size_t step, Reason reason) { decisions_[step].reasons.push_back(reason); }

  void protect() {
    for (const size_t at : complete_) {
      if (complete_ranks_[at] == 0) keep(at, Reason::newest);
    }
    for (size_t at = 0; at < steps_.size(); ++at) {
      const StepFacts& step = steps_[at];
      if (step.pinned) keep(at, Reason::pinned);
      if (step.latest) keep(at, Reason::latest);
      if (step.best_model) keep(at, Reason::best_model);
      if (step.in_use) keep(at, Reason::in_use);
      if (step.completeness == Completeness::unknown || step.untold) keep(at, Reason::unknown);
      if (step.out_of_reach) keep(at, Reason::out_of_reach);
    }
    for (const size_t at : unpushed_) {
      if (unpushed_ranks_[at] < policy_.hold_unpushed.value_or(kHoldUnpushed)) keep(at, Reason::unpushed);
    }
    for (size_t at = 0; at < steps_.size(); ++at) protected_.push_back(!decisions_[at].reasons.empty());
  }

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
    std::copy_if(whole_.begin(), whole_.end(), std::back_inserter(measured),
                 [this](size_t at) { return steps_[at].metric && !std::isnan(*steps_[at].metric); });
    if (measured.empty() && !whole_.empty()) {
      for (const size_t at : whole_) keep(at, Reason::keep_best);
      warnings_.push_back("keep_best keeps all: no step has the metric " + rule.metric);
      return;
    }
    std::stable_sort(measured.begin(), measured.end(), [&](size_t a, size_t b) {
      return rule.smallest ? *steps_[a].metric < *steps_[b].metric : *steps_[a].metric > *steps_[b].metric;
    });
    measured.resize(static_cast<size_t>(std::min<uint64_t>(rule.count, measured.size())));
    for (const size_t at : measured) keep(at, Reason::keep_best);
  }

  // The first reasons of a step that is protected are its protections.
  void apply_keep_full(const KeepFull& rule) {
    for (const size_t at : complete_) {
      Decision& decision = decisions_[at];
      if (!decision.stays) continue;
      const bool full = complete_ranks_[at] < rule.count.value_or(0) || (rule.age && is_younger_than(at, *rule.age));
      if (full) {
        decision.full_because = "keep_full";
      } else if (protected_[at]) {
        decision.full_because = name_of(decision.reasons.front());
      } else if (!steps_[at].not_thinned.empty()) {
        decision.full_because = steps_[at].not_thinned;
      } else {
        decision.thins = true;
      }
    }
  }

  void judge_incomplete(size_t at) {
    const bool is_newest = complete_.empty() || is_higher(at, highest_) || is_seen_later(at, seen_last_);
    if (!policy_.keep_partial || is_newest || is_younger_than(at, *policy_.keep_partial)) {
      keep(at, Reason::keep_partial);
    } else if (!protected_[at]) {
      decisions_[at] = {false, {Reason::keep_partial_is_over}};
    }
  }

  std::vector<size_t> gone() const {
    std::vector<size_t> gone;
    for (size_t at = 0; at < decisions_.size(); ++at) {
      if (!decisions_[at].stays) gone.push_back(at);
    }
    return gone;
  }

  Result<bool> is_met_without(const std::vector<size_t>& oldest, size_t count, uint64_t cap,
                              bool (*met)(const Room&, uint64_t)) const {
    std::vector<size_t> without = gone();
    without.insert(without.end(), oldest.begin(), oldest.begin() + static_cast<std::ptrdiff_t>(count));
    std::sort(without.begin(), without.end());
    TRY_ASSIGN(const Room room, room_(without));
    return met(room, cap);
  }

  // Removes as few of the oldest steps as it takes to meet the cap. Each removal makes room, so a binary search finds
  // how many.
  Result<> apply_cap(Reason reason, const std::optional<uint64_t>& cap, bool (*met)(const Room&, uint64_t)) {
    if (!cap) return success();
    std::vector<size_t> oldest;
    std::copy_if(whole_.rbegin(), whole_.rend(), std::back_inserter(oldest),
                 [this](size_t at) { return decisions_[at].stays && !protected_[at]; });
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
    const bool thins = std::any_of(decisions_.begin(), decisions_.end(), [](const Decision& one) { return one.thins; });
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
  std::vector<size_t> unpushed_;        // likewise, complete or not
  std::vector<size_t> unpushed_ranks_;  // among unpushed_; a step each
  size_t highest_ = 0;                  // of complete ones, as is seen_last_
  size_t seen_last_ = 0;
  std::vector<Decision> decisions_;
  std::vector<bool> protected_;
  std::vector<std::string> warnings_;
};

}  // namespace

bool is_seen_later(const StepFacts& a, const StepFacts& b) {
  return std::tie(a.seen, a.completed, a.number, a.tag) > std::tie(b.seen, b.completed, b.number, b.tag);
}

bool is_higher(const StepFacts& a, const StepFacts& b) {
  return a.number != b.number ? a.number > b.number : is_seen_later(a, b);
}

const char* name_of(Reason reason) {
  constexpr std::array<const char*, 18> kNames{"newest",
                                               "pinned",
                                               "latest",
                                               "best model",
                                               "in use",
                                               "unknown",
                                               "its setter may not remove it",
                                               "not pushed yet",
                                               "keep_last",
                                               "keep_every",
                                               "keep_for",
                                               "keep_best",
                                               "no rule",
                                               "keep_partial",
                                               "no rule keeps it",
                                               "keep_partial",
                                               "max_bytes",
                                               "min_free"};
  return kNames[static_cast<size_t>(reason)];
}

Result<Judgement> judge(const Policy& policy, const std::vector<StepFacts>& steps, const Moment& now,
                        const RoomWithout& room) {
  return Judge(policy, steps, now, room).run();
}

}  // namespace ckptfs::meta
