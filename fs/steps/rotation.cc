#include "fs/steps/rotation.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <set>
#include <unordered_set>
#include <utility>

#include "io/fault.h"
#include "io/log.h"
#include "meta/accounting/accounting.h"
#include "meta/time.h"

namespace ckptfs::fs {
namespace {

using meta::Reason;

constexpr std::chrono::milliseconds kShortest{250};
constexpr std::chrono::milliseconds kLongest{5000};
constexpr std::chrono::minutes kNoteClock{10};
constexpr int kPauseFactor = 50;  // rotation uses at most a fiftieth of a processor, or two if series differ much

meta::WallTime wall_now() { return meta::wall_time(meta::now()); }

std::string names_of(const std::vector<Reason>& reasons) {
  std::string names;
  for (const Reason reason : reasons) names += (names.empty() ? "" : ", ") + std::string(meta::name_of(reason));
  return names;
}

// The processor time of this thread.
std::chrono::nanoseconds time_of_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::string owned_by(uint32_t uid) { return "steps of uid " + std::to_string(uid); }

// It is no failure if somebody else removes a step meanwhile, or if the mount ends.
bool is_harmless(const Error& error) { return is_gone(error) || error.errno_value() == ECANCELED; }

// The steps that others go for: the newest ones, and those that a rule has counted.
std::vector<const StepStatus*> counted_steps(const SeriesStatus& status, const meta::Judgement& judgement) {
  std::set<const StepStatus*> counted;
  for (const auto holds : meta::kNeverLost) {
    for (const StepStatus* const step : status.newest(holds)) counted.insert(step);
  }
  for (size_t at = 0; at < status.steps.size(); ++at) {
    const auto& reasons = judgement.decisions[at].reasons;
    const bool by_number = std::ranges::find(reasons, Reason::keep_last) != reasons.end() ||
                           std::ranges::find(reasons, Reason::keep_best) != reasons.end();
    if (by_number && status.steps[at].facts.is_complete()) counted.insert(&status.steps[at]);
  }
  return {counted.begin(), counted.end()};
}

// Would a rule remove the step, if it was not protected? The protections are the first reasons. Unknown steps are not
// reported as held, since they have a warning of their own.
bool is_held(const meta::Policy& policy, const StepStatus& step, const std::vector<Reason>& reasons) {
  return meta::protects_from(reasons.back(), meta::kLose) && std::ranges::count(reasons, Reason::unknown) == 0 &&
         (step.facts.is_whole() ? policy.has_keep_rule() : policy.keep_partial.has_value());
}

}  // namespace

void Rotation::start() {
  thread_.start([this] { run(); }, io::BackgroundThread::Priority::low);
  thinner_.start();
}

void Rotation::stop() {
  step_facts_.stop();
  thinner_.stop();
  thread_.stop();
}

RotationReport Rotation::report() const {
  const io::MutexLock lock(mutex_);
  return report_;
}

void Rotation::failed(const std::string& what, const Error& error) {
  log::warn("{}: {}", what, error.message());
  const io::MutexLock lock(mutex_);
  ++report_.failures;
}

void Rotation::wake() {
  woken_ = true;
  thread_.wake();
}

void Rotation::count_round() {
  if (!std::ranges::all_of(turns_, [](const auto& one) { return one.second.looked_at; })) return;
  for (auto& [series, turn] : turns_) turn.looked_at = false;
  const io::MutexLock lock(mutex_);
  ++report_.rounds;
}

void Rotation::run() {
  started_ = clock_noted_ = Clock::now();
  const auto interval = std::clamp<Clock::duration>(quiet_ / 4, kShortest, kLongest);
  for (Clock::duration rest = interval; thread_.wait_for(rest);) {
    set_aside_.settle_all();
    const auto began = time_of_thread();
    const auto rotating = rotate_all();
    if (!rotating && !is_harmless(rotating.error())) failed("rotation", rotating.error());
    count_round();
    const auto beside = time_of_thread() - began - (rotating ? rotating.value() : std::chrono::nanoseconds(0));
    rest = std::max<Clock::duration>(interval, beside * kPauseFactor);
  }
  clock_noted_ = {};
  if (const auto noted = note_clock(); !noted) failed("rotation", noted.error());
}

// Rotation's time is divided equally among owners, then among each owner's series: one with thousands of steps delays
// only its own rules. What the others do not use of theirs shortens its pause.
Result<std::chrono::nanoseconds> Rotation::rotate_all() {
  std::chrono::nanoseconds rotating{};
  if (!tree_.is_inspected()) return rotating;  // what is damaged is not known yet
  files_.forget_closed_before(Clock::now() - 2 * quiet_);
  TRY_ASSIGN(const auto divisors, find_divisors());
  const bool woken = woken_.exchange(false);
  std::erase_if(turns_, [&divisors](const auto& one) { return !divisors.contains(one.first); });
  std::chrono::nanoseconds all{};
  for (const auto& [series, turn] : turns_) all += turn.took;
  for (const auto& [series, divisor] : divisors) {
    Turn& turn = turns_[series];
    if (!woken && Clock::now() < turn.next) continue;
    all -= turn.took;
    turn.took = look_at(series, turn);
    all += turn.took;
    rotating += turn.took;
    turn.next = Clock::now() + kPauseFactor * std::min(turn.took * static_cast<int64_t>(divisor), all);
  }
  report_findings();
  return rotating;
}

// Returns what it took: processor time. What was in vain, and is tried again, may have made others wait for the disk.
std::chrono::nanoseconds Rotation::look_at(meta::InodeNumber series, Turn& turn) {
  const auto began = Clock::now();
  const auto began_here = time_of_thread();
  turn.findings = {};
  turn.looked_at = true;
  const auto done = rotate_series(series, turn.findings);
  if (!done && !is_harmless(done.error())) failed("rotation of " + tree_.path_of(series), done.error());
  return turn.findings.in_vain ? Clock::now() - began : time_of_thread() - began_here;
}

// Of each series that has rules: the number of owners times that of its owner's series.
Result<std::map<meta::InodeNumber, size_t>> Rotation::find_divisors() {
  TRY_ASSIGN(const auto all, meta::list_series(tree_));
  std::map<uint32_t, std::vector<meta::InodeNumber>> by_owner;
  for (const meta::InodeNumber series : all) {
    const auto record = tree_.inode(series);
    const auto policy = record ? meta::policy_of(store_, series) : record.error();
    if (!policy && !is_harmless(policy.error())) failed("rotation of " + tree_.path_of(series), policy.error());
    if (policy && !(policy.value().set.empty() && policy.value().armed.empty()))
      by_owner[record.value().uid].push_back(series);
  }
  std::map<meta::InodeNumber, size_t> divisors;
  for (const auto& [owner, owned] : by_owner) {
    for (const meta::InodeNumber series : owned) divisors[series] = by_owner.size() * owned.size();
  }
  return divisors;
}

void Rotation::report_findings() {
  Findings findings;
  for (const auto& [series, turn] : turns_) {
    findings.held.insert(findings.held.end(), turn.findings.held.begin(), turn.findings.held.end());
    findings.warnings.insert(findings.warnings.end(), turn.findings.warnings.begin(), turn.findings.warnings.end());
  }
  const std::vector<std::string> told = report().warnings;
  for (const std::string& warning : findings.warnings) {
    if (std::find(told.begin(), told.end(), warning) == told.end()) log::warn("rotation: {}", warning);
  }
  const io::MutexLock lock(mutex_);
  report_.held = std::move(findings.held);
  report_.warnings = std::move(findings.warnings);
}

// After a crash of the machine the steps are younger by the time since the clock was noted last.
Result<> Rotation::note_clock() {
  if (Clock::now() - clock_noted_ < kNoteClock) return success();
  clock_noted_ = Clock::now();
  return step_facts_.clock().note(store_.index());
}

Result<> Rotation::rotate_series(meta::InodeNumber series, Findings& findings) {
  TRY_ASSIGN(const meta::SeriesPolicy series_policy, meta::policy_of(store_, series));
  if (series_policy.set.empty() && series_policy.armed.empty()) return success();
  TRY_ASSIGN(const meta::Policy wanted, meta::parse_policy(series_policy.armed));
  TRY(note_clock());
  const std::string metric = wanted.keep_best ? wanted.keep_best->metric : "";
  TRY_ASSIGN(const SeriesStatus status, step_facts_.inspect_series(series, metric, true));
  if (const std::string why = why_no_steps(status); !why.empty() && wall_now() - status.changed >= quiet_) {
    findings.warnings.push_back(tree_.path_of(series) + ": its rules do nothing: " + why);
  }
  note_whole(status, tree_.path_of(series));
  TRY(note_named(series, status));
  if (!series_policy.is_armed()) {
    TRY_ASSIGN(const bool changed, arm(series, series_policy, status));
    if (changed) {  // a policy that has just been replaced does nothing
      wake();
      return success();
    }
  }
  if (series_policy.armed.empty() || !meta::tell_same_steps(series_policy.set, series_policy.armed)) return success();
  const Rules rules{series_policy.armed, series_policy.armed_by};
  TRY_ASSIGN(const meta::Judgement judgement, judge(rules, status));
  const std::string path = tree_.path_of(series);
  for (const std::string& warning : judgement.warnings) findings.warnings.push_back(path + ": " + warning);
  for (const StepStatus& step : status.steps) {
    if (step.failed) findings.warnings.push_back(path + "/" + step.facts.tag + " cannot be judged: " + step.reason);
  }
  for (const auto& [user, why] : status.unclear_to) {
    findings.warnings.push_back(path + ": " + owned_by(user) + " stay: " + why);
  }
  if (!status.unclear.empty()) {
    findings.warnings.push_back(path + ": nothing is removed: " + status.unclear);
    return success();
  }
  TRY(carry_out(series, wanted, status, judgement, findings));
  TRY(thin(series, wanted, status, judgement, findings));
  return seal(wanted, rules, status, judgement);
}

// What is complete and durable needs not be set aside any more.
void Rotation::note_whole(const SeriesStatus& status, const std::string& path) {
  for (const StepStatus& step : status.steps) {
    const bool may_be_set_aside = set_aside_.is_unfinished(step.inode);
    if (!step.facts.is_whole() || step.has_foreign_metric || (step.is_known_whole() && !may_be_set_aside)) continue;
    const auto durable = may_be_set_aside ? step_facts_.make_durable(step) : Result<>(success());
    const auto forget = [&] { set_aside_.note_complete(step.inode); };
    const auto noted = durable ? writers_.note_whole(step, forget) : durable.error();
    if (!noted && !is_harmless(noted.error())) failed("syncing " + path + "/" + step.facts.tag, noted.error());
  }
}

// Which steps the tracker file named while the mount looked.
Result<> Rotation::note_named(meta::InodeNumber series, const SeriesStatus& status) {
  TRY_ASSIGN(const meta::DeclaredSteps declared, meta::declared_steps(tree_, series));
  if (std::ranges::count(meta::kTrackers, declared.complete_when) == 0) return success();
  const Latest latest = latest_of(tree_, series, declared.complete_when);
  for (const StepStatus& step : status.steps) {
    if (step.ledger.named || step.failed || !latest.names(step.facts.tag)) continue;
    TRY_ASSIGN(const std::string why, why_not_named(tree_, step.inode, declared.complete_when, step.ledger));
    if (why.empty()) TRY(writers_.note_named(step.inode));
  }
  return success();
}

// If the removal of one step fails, the others are removed all the same.
Result<> Rotation::carry_out(meta::InodeNumber series, const meta::Policy& policy, const SeriesStatus& status,
                             const meta::Judgement& judgement, Findings& findings) {
  const std::string path = tree_.path_of(series);
  std::vector<size_t> going;
  for (size_t at = 0; at < status.steps.size(); ++at) {
    if (judgement.decisions[at].stays) {
      const auto& reasons = judgement.decisions[at].reasons;
      if (is_held(policy, status.steps[at], reasons))
        findings.held.push_back(path + "/" + status.steps[at].facts.tag + ": " + names_of(reasons));
    } else if (status.why_unclear(status.steps[at].facts.owner).empty()) {
      going.push_back(at);
    }
  }
  if (going.empty()) return success();
  if (Clock::now() - started_ < 2 * quiet_) {  // nobody knows who had what open before
    for (const size_t at : going)
      findings.held.push_back(path + "/" + status.steps[at].facts.tag + ": mounted a moment ago");
    return success();
  }
  TRY_ASSIGN(const bool durable, try_make_durable(series, status, judgement, "removed", findings));
  if (!durable) return success();
  const std::vector<const StepStatus*> counted = counted_steps(status, judgement);
  for (const size_t at : going) {
    if (thread_.is_stopping()) return Error(ECANCELED);
    const StepStatus& step = status.steps[at];
    const auto objection = find_objection(series, status, step, judgement.decisions[at], counted);
    if (objection && !objection.value().empty()) {
      findings.held.push_back(path + "/" + step.facts.tag + ": " + objection.value());
      continue;
    }
    const auto done = [&]() -> Result<> {
      TRY(objection);
      TRY(io::fault_point("rotation.before_remove"));
      return removals_.remove(series, step.facts.tag, step.inode, names_of(judgement.decisions[at].reasons));
    }();
    if (done) {
      log::info("rotation: {}/{} is removed: {}", path, step.facts.tag, names_of(judgement.decisions[at].reasons));
      const io::MutexLock lock(mutex_);
      ++report_.removed;
    } else if (!is_harmless(done.error())) {
      failed("rotation of " + path + "/" + step.facts.tag, done.error());
      findings.in_vain = true;
    }
  }
  return success();
}

// A removal is durable at once. What was written to the steps that stay, and to `latest`, may still be in memory only.
Result<> Rotation::make_durable(meta::InodeNumber series, const SeriesStatus& status,
                                const meta::Judgement& judgement) const {
  TRY(tree_.write_back().sync_all());  // also reports failed write-backs that no file reports any more
  for (size_t at = 0; at < status.steps.size(); ++at) {
    const StepStatus& step = status.steps[at];
    if (!judgement.decisions[at].stays || !step.facts.is_whole()) continue;
    TRY(step_facts_.make_durable(step));
  }
  for (const char* const tracker : meta::kTrackers) {
    TRY_ASSIGN(const auto file, none_if_gone(tree_.child(series, tracker)));
    if (!file) continue;
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(*file));
    if (record.is_live_file()) TRY(file_sync_.sync_file(*file));
  }
  return tree_.sync();
}

// `what` is not done otherwise, as a warning says.
Result<bool> Rotation::try_make_durable(meta::InodeNumber series, const SeriesStatus& status,
                                        const meta::Judgement& judgement, const std::string& what,
                                        Findings& findings) const {
  const auto durable = make_durable(series, status, judgement);
  if (durable) return true;
  if (is_harmless(durable.error())) return durable.error();
  findings.warnings.push_back(tree_.path_of(series) + ": nothing is " + what +
                              ", as what stays is not durable: " + durable.error().message());
  findings.in_vain = true;
  return false;
}

Result<bool> Rotation::is_as_it_was(meta::InodeNumber series, const StepStatus& complete) const {
  TRY_ASSIGN(const auto there, none_if_gone(tree_.child(series, complete.facts.tag)));
  if (there != complete.inode) return false;
  TRY_ASSIGN(const auto now, none_if_gone(step_facts_.inspect_step(complete.inode)));
  return now && now->facts.is_complete() && now->fingerprint == complete.fingerprint;
}

// Right before a removal: the steps that stay in its place and the tracker files must be what they were, and the step
// is asked for its own protections once more, what may change in a moment last.
Result<std::string> Rotation::find_objection(meta::InodeNumber series, const SeriesStatus& status,
                                             const StepStatus& step, const meta::Decision& decision,
                                             const std::vector<const StepStatus*>& counted) const {
  bool any = false;
  for (const StepStatus* const one : counted) {
    if (one->facts.owner != step.facts.owner) continue;
    TRY_ASSIGN(const bool same, is_as_it_was(series, *one));
    if (!same) return "a step that stays in its place is no longer what it was: " + one->facts.tag;
    any = true;
  }
  if (!any) return "nothing complete would be left";
  TRY_ASSIGN(const StepStatus now, step_facts_.inspect_step(step.inode));
  const Latest latest = latest_of(tree_, series);
  TRY_ASSIGN(const bool in_use, step_facts_.is_in_use(step.inode));
  meta::StepFacts facts = step.facts;  // those that depend on other steps stay those of the inspection
  facts.completeness = now.facts.completeness;
  facts.pinned = now.facts.pinned;
  facts.latest = latest.names(step.facts.tag);
  facts.in_use = now.facts.in_use || in_use;
  facts.untold = facts.untold || now.facts.untold;
  auto protections = meta::own_protections(facts, meta::kLose);
  const bool unknown_goes = decision.reasons.front() == Reason::keep_unknown_is_over && !facts.untold;
  if (unknown_goes) std::erase(protections, Reason::unknown);
  if (!protections.empty()) return std::string(meta::name_of(protections.front()));
  if (now.facts.completeness != step.facts.completeness || now.changed != step.changed) return "it has just changed";
  return std::string(latest != status.latest ? "`latest` has just changed" : "");
}

// A series is *left alone* if nothing in it has changed for the quiet time. See meta/steps/policy.h.
Result<bool> Rotation::arm(meta::InodeNumber series, const meta::SeriesPolicy& policy, const SeriesStatus& status) {
  if (!policy.left_alone) {
    const auto since = std::max(status.changed, meta::wall_time(policy.changed)) + quiet_;
    if (status.written || wall_now() < since) return false;
    // With a quiet time of 0, any step that completes after the change arms the policy.
    const timespec left_alone = quiet_.count() == 0 ? policy.changed : meta::to_timespec(since);
    TRY(meta::note_left_alone(store_, series, policy, left_alone));
    return true;
  }
  const auto left_alone = meta::wall_time(*policy.left_alone);
  const bool completed = std::any_of(status.steps.begin(), status.steps.end(), [&](const StepStatus& step) {
    return step.facts.is_complete() && step.facts.completed >= left_alone &&
           step.facts.completed <= wall_now();  // a step dated in the future may be older than the change
  });
  if (!completed) return false;
  TRY(meta::arm(store_, series, policy));
  log::info("the policy of {} is armed", tree_.path_of(series));
  return true;
}

// The owner of the series comes last, so that other users' steps are the first to make room.
Result<meta::Judgement> Rotation::judge(const Rules& rules, const SeriesStatus& status) const {
  std::map<std::pair<bool, uint32_t>, std::vector<size_t>> by_owner;
  for (size_t at = 0; at < status.steps.size(); ++at) {
    const uint32_t owner = status.steps[at].facts.owner;
    by_owner[{owner == status.owner, owner}].push_back(at);
  }
  meta::Judgement judgement;
  judgement.decisions.resize(status.steps.size());
  std::vector<meta::InodeNumber> gone;
  for (const auto& [owner, steps] : by_owner) {
    TRY_ASSIGN(meta::Judgement of_owner, judge_owner(rules, status, steps, gone));
    for (size_t at = 0; at < steps.size(); ++at) {
      if (!of_owner.decisions[at].stays) gone.push_back(status.steps[steps[at]].inode);
      judgement.decisions[steps[at]] = std::move(of_owner.decisions[at]);
    }
    for (const std::string& warning : of_owner.warnings) {
      judgement.warnings.push_back(by_owner.size() == 1 ? warning : owned_by(owner.second) + ": " + warning);
    }
  }
  return judgement;
}

// Thinning is a removal. Who thins asks for the protections again (fs/steps/thinner.h).
Result<> Rotation::thin(meta::InodeNumber series, const meta::Policy& policy, const SeriesStatus& status,
                        const meta::Judgement& judgement, Findings& findings) {
  if (thinner_.is_busy() || Clock::now() - started_ < 2 * quiet_) return success();
  const StepStatus* oldest = nullptr;
  for (size_t at = 0; at < status.steps.size(); ++at) {
    const StepStatus& step = status.steps[at];
    if (!judgement.decisions[at].thins || !status.why_unclear(step.facts.owner).empty()) continue;
    if (oldest == nullptr || step.facts.completed < oldest->facts.completed) oldest = &step;
  }
  if (oldest == nullptr) return success();
  TRY_ASSIGN(const bool durable, try_make_durable(series, status, judgement, "thinned", findings));
  if (durable)
    thinner_.thin({oldest->inode, oldest->fingerprint, oldest->facts.owner, policy.thin_to.value_or("same")});
  return success();
}

Result<meta::Judgement> Rotation::judge_owner(const Rules& rules, const SeriesStatus& status,
                                              const std::vector<size_t>& steps,
                                              const std::vector<meta::InodeNumber>& gone_before) const {
  TRY_ASSIGN(meta::Policy policy, meta::parse_policy(rules.text));
  // While removals are still freeing space, more removals for min_free would be for nothing.
  if (removals_.is_freeing()) policy.min_free.reset();
  std::vector<meta::StepFacts> facts;
  std::vector<meta::InodeNumber> inodes;
  for (const size_t at : steps) {
    const StepStatus& step = status.steps[at];
    facts.push_back(step.facts);
    facts.back().not_thinned = thinner_.refusal(step.inode, step.fingerprint);
    inodes.push_back(step.inode);
  }
  std::optional<uint64_t> of_owner;
  const meta::RoomWithout room = [&](const std::vector<size_t>& gone) -> Result<meta::Room> {
    std::vector<meta::InodeNumber> own, all = gone_before;
    for (const size_t at : gone) own.push_back(inodes[at]);
    all.insert(all.end(), own.begin(), own.end());
    meta::Room left;
    if (policy.max_bytes) {
      if (!of_owner) TRY_SET(of_owner, store_.accounting().exclusive(inodes));
      TRY_ASSIGN(const uint64_t freed, store_.accounting().exclusive(own));
      left.series = *of_owner - std::min(freed, *of_owner);
    }
    if (policy.min_free) {
      TRY_ASSIGN(const uint64_t freed, store_.accounting().exclusive(all));
      left.free = store_.space().free + freed;
    }
    return left;
  };
  const meta::Moment moment{wall_now(), step_facts_.clock().now()};
  // It takes a while to find out whether a user could remove a step. So it is asked only of steps that are to go, or to
  // be thinned.
  std::unordered_set<size_t> allowed;
  while (true) {
    TRY_ASSIGN(meta::Judgement judgement, meta::judge(policy, facts, moment, room));
    bool all_allowed = true;
    for (size_t at = 0; at < facts.size(); ++at) {
      const meta::Decision& decision = judgement.decisions[at];
      if ((decision.stays && !decision.thins) || allowed.contains(at)) continue;
      TRY_ASSIGN(const bool may, meta::may_rules_remove(tree_, rules.text, rules.setters, inodes[at]));
      if (may) allowed.insert(at);
      facts[at].out_of_reach = !may;
      all_allowed = all_allowed && may;
    }
    if (all_allowed) return judgement;
  }
}

Result<> Rotation::seal(const meta::Policy& policy, const Rules& rules, const SeriesStatus& status,
                        const meta::Judgement& judgement) {
  if (!policy.seal_after) return success();
  const meta::StoreTime now = step_facts_.clock().now();
  for (size_t at = 0; at < status.steps.size(); ++at) {
    const StepStatus& step = status.steps[at];
    const auto& seen = step.ledger.seen;
    if (!judgement.decisions[at].stays) continue;
    const bool due = step.facts.is_whole() && !step.record.sealed && !step.facts.in_use && seen &&
                     now - std::max(seen->completed_at, seen->changed_at) >= *policy.seal_after;
    if (!due) continue;
    TRY_ASSIGN(const auto may, none_if_gone(meta::may_rules_remove(tree_, rules.text, rules.setters, step.inode)));
    if (!may || !*may) continue;
    const auto sealed = saver_.seal(step.inode);
    // ENOENT: it was removed this moment. EBUSY: somebody writes to it again.
    if (!sealed && !is_gone(sealed.error()) && sealed.error().errno_value() != EBUSY) {
      failed("sealing " + tree_.path_of(step.inode), sealed.error());
    }
    if (sealed) log::info("rotation: {} is sealed: seal_after", tree_.path_of(step.inode));
  }
  return success();
}

Result<SeriesJudgement> Rotation::preview(meta::InodeNumber series, const std::optional<Rules>& rules) {
  SeriesJudgement found;
  TRY_ASSIGN(found.policy, meta::policy_of(store_, series));
  const Rules asked = rules ? *rules : Rules{found.policy.set, found.policy.set_by};
  TRY_ASSIGN(const meta::Policy policy, meta::parse_policy(asked.text));
  TRY_ASSIGN(found.status, step_facts_.inspect_series(series, policy.keep_best ? policy.keep_best->metric : "", false));
  TRY_ASSIGN(found.judgement, judge(asked, found.status));
  if (!meta::tell_same_steps(asked.text, found.policy.set)) {
    found.judgement.warnings.push_back(
        "`steps` and `complete_when` count as they are set now: set these two first, and ask again");
    return found;
  }
  const std::string why = asked.text.empty() ? std::string() : why_no_steps(found.status);
  if (!why.empty()) found.judgement.warnings.push_back("these rules do nothing: " + why);
  return found;
}

}  // namespace ckptfs::fs
