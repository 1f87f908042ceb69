#include "fs/remote/series_pusher.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "fs/remote/save_order.h"
#include "io/host.h"
#include "io/log.h"
#include "meta/names.h"
#include "meta/remote/commit.h"
#include "meta/remote/part_format.h"
#include "meta/steps/policy.h"
#include "meta/steps/steps.h"

namespace ckptfs::fs {
namespace {

using Stage = PushState::Stage;
using meta::remote::Claim;
using meta::remote::TagStatus;

constexpr const char* kWhenPushedAgain =
    "; it is pushed again when it changes here, when another slot has pushed something new, or by `ckptfs push`";
constexpr const char* kLeftAlone =
    ": it is incomplete, and nobody writes to it. It is committed once that is there; or save the step again";
constexpr std::chrono::seconds kShortestRest{1}, kLongestRest{30};  // between rounds in which nothing happened
constexpr std::chrono::seconds kWaitingRest{5};                     // likewise, while other slots are waited for
constexpr std::chrono::seconds kFirstRetry{5}, kLongestRetry{60};
constexpr std::chrono::hours kFileTime{24};  // for a file or a piece, with all tries: what is slow is not given up
constexpr std::chrono::minutes kRequestTime{2};
constexpr std::chrono::seconds kTroubled{5};  // a failure that passes sooner is not told
constexpr std::chrono::seconds kRateWindow{5};
constexpr unsigned kFilesAtOnce = 4;

// Can the step never be pushed as it is? A file of it is damaged or of a kind that no remote holds, its name is none
// for a remote, or another mount is the same slot. Then somebody must act.
bool is_hopeless(int code) { return code == EINVAL || code == EBADMSG || code == EEXIST; }

// Not what an attempt to save it is called until it is committed, nor what an abandoned one is.
bool is_name_of_step(const std::string& name) { return !meta::is_partial_name(name) && !meta::is_set_aside_name(name); }

std::string agreed_id(const StepStatus& step) { return step.ledger.agreed ? step.ledger.agreed->id : std::string(); }

}  // namespace

SeriesPusher::SeriesPusher(const LocalStep::Environment& environment, PushStates& states, meta::InodeNumber series,
                           RemoteSettings settings, std::unique_ptr<io::ObjectStore> remote,
                           std::function<void()> wake_others)
    : env_(environment),
      states_(states),
      series_(series),
      settings_(std::move(settings)),
      remote_(std::move(remote)),
      wake_others_(std::move(wake_others)),
      folder_(env_.store.folder() + "/remote"),
      limit_(settings_.upload_limit) {
  slot_.slot = settings_.slot;
  slot_.slots = settings_.slots;
  slot_.host = io::host_name();
  remote_->counts().tell_trouble(
      [url = settings_.url](const std::string& text) { log::warn("{}: nothing succeeds: {}", url, text); });
  slot_.mount = mount_name(env_.store, series);
  owner_ = {0, settings_.claim, slot_.host, slot_.mount};
}

void SeriesPusher::start() {
  stopping_ = false;
  states_.add_series(series_, settings_.slots);
  env_.writers.watch(series_, StepWriters::kRemote);
  thread_.start([this] { run(); }, io::BackgroundThread::Priority::low);
}

void SeriesPusher::stop() {
  stopping_ = true;
  thread_.stop();
}

// What was known of the step may be old: it may have been removed there, or mended here. Who waits for it sees only
// what the next rounds find.
void SeriesPusher::push_now(meta::InodeNumber step, const std::string& tag, bool again) {
  const auto known = states_.of(step);
  if (!known || known->is_settled() || known->stage == Stage::refused) {
    PushState state;
    state.tag = tag;
    states_.set(series_, step, std::move(state));
  }
  {
    const io::MutexLock lock(mutex_);
    Asked& asked = asked_[step];
    asked = {true, again || asked.again};
  }
  thread_.wake();
}

RemoteReport SeriesPusher::report() const {
  RemoteReport report;
  {
    const io::MutexLock lock(mutex_);
    report = report_;
  }
  const auto now = Clock::now();
  const io::RequestCounts& counts = remote_->counts();
  report.settings = settings_;
  report.puts = counts.puts;
  report.gets = counts.gets;
  report.lists = counts.lists;
  report.retries = counts.retries;
  report.bytes_per_second = bytes_per_second();
  if (const auto trouble = counts.trouble(); trouble && now - trouble->since >= kTroubled) {
    report.trouble = trouble->text;
    report.stalled = std::chrono::duration_cast<std::chrono::seconds>(now - trouble->since);
  }
  for (const auto& [step, state] : states_.all(series_)) {
    if (state.is_settled()) continue;
    if (state.stage == Stage::pushing) report.pushing = state.tag;
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - state.since);
    report.oldest = std::max(report.oldest.value_or(age), age);
  }
  return report;
}

io::RequestLimits SeriesPusher::limits() const { return io::RequestLimits::within(kRequestTime, &stopping_); }

std::string SeriesPusher::journal_of(const std::string& tag) const {
  return folder_ + "/" + std::to_string(series_) + "." + tag + ".journal";
}

Result<bool> SeriesPusher::is_manual() const {
  TRY_ASSIGN(const meta::SeriesPolicy policy, meta::policy_of(env_.store, series_));
  const auto rule = policy.set.find("push");
  return rule != policy.set.end() && rule->second == "manual";
}

void SeriesPusher::note_trouble(const std::string& text) {
  const io::MutexLock lock(mutex_);
  if (!text.empty() && text != report_.trouble) log::warn("{}: {}", settings_.url, text);
  if (!text.empty() && text != nothing_) ++report_.failures;
  report_.trouble = text;
}

// What has just become quiet does not wait much longer.
std::chrono::seconds SeriesPusher::longest_rest() const {
  const bool waits = std::ranges::any_of(steps_, [](const auto& one) { return one.second.pushed.has_value(); });
  return std::clamp(env_.quiet, kShortestRest, waits ? kWaitingRest : kLongestRest);
}

void SeriesPusher::run() {
  auto rest = kShortestRest;
  while (!thread_.is_stopping()) {
    const auto busy = round();
    if (!busy && busy.error().errno_value() == ECANCELED) return;
    note_trouble(busy ? nothing_ : busy.error().message());
    rest = busy && busy.value() ? kShortestRest : std::min(2 * rest, longest_rest());
    if (busy && busy.value()) continue;
    const auto before = Clock::now();
    if (!thread_.wait_for(rest)) return;
    if (Clock::now() - before < rest) rest = kShortestRest;  // somebody woke it
  }
}

Result<> SeriesPusher::reach() {
  if (facts_) return success();
  TRY_ASSIGN(const meta::remote::RemoteFacts facts, meta::remote::read_facts(*remote_, limits()));
  if (facts.slots != settings_.slots) {
    return Error(EINVAL, settings_.url + " has " + std::to_string(facts.slots) + " slots, as " + facts.host +
                             " made it, and this mount was told of " + std::to_string(settings_.slots) +
                             "; `ckptfs remote add` tells it anew");
  }
  TRY(remote_->find_check(meta::remote::kProbe + meta::remote::new_id(), limits()));
  TRY(claim());
  facts_ = facts;
  const io::MutexLock lock(mutex_);
  report_.id = facts.id;
  return success();
}

// The store's clock has gone back if a save of ours there is of later than now: the store was restored from a copy.
Result<> SeriesPusher::claim() {
  TRY_SET(owner_.term, meta::remote::claim_slot(*remote_, settings_.slot, owner_, Claim::as_before, limits()));
  if (settings_.slot != 0) return success();
  TRY_ASSIGN(const auto steps, meta::remote::list_steps(*remote_, limits()));
  const auto now = static_cast<uint64_t>(env_.step_facts.clock().now().count());
  const bool went_back = std::ranges::any_of(steps, [&](const auto& step) {
    return step.decision.order.term == owner_.term && step.decision.order.time > now;
  });
  if (went_back) {
    TRY_SET(owner_.term, meta::remote::claim_slot(*remote_, settings_.slot, owner_, Claim::next_term, limits()));
  }
  return success();
}

// Something was done: the next round may have more to do at once.
Result<bool> SeriesPusher::round() {
  if (!env_.store.tree().inode(series_)) {  // it was removed
    states_.remove_series(series_);
    return Error(ECANCELED);
  }
  if (!env_.store.tree().is_inspected()) return false;  // what is damaged is not known yet
  TRY_ASSIGN(manual_, is_manual());
  {
    const io::MutexLock lock(mutex_);
    report_.manual = manual_;
  }
  TRY(forget_missing());
  TRY(reach());
  TRY_ASSIGN(const std::vector<Candidate> found, candidates());
  bool changed = false;
  for (const Candidate& candidate : found) {
    std::optional<Pushed>& pushed = steps_[candidate.status.inode].pushed;
    if (!pushed) continue;
    if (pushed->fingerprint != candidate.status.fingerprint || pushed->image->tag() != candidate.status.facts.tag) {
      pushed.reset();
      steps_[candidate.status.inode].forget_failures();  // what was waited for is of another save
      continue;
    }
    if (is_resting(candidate.status.inode)) continue;
    if (const auto decided = go_on(candidate.status.inode, *pushed); !decided) {
      if (stopping_ || remote_->counts().trouble()) return decided.error();
      failed(candidate, decided.error());  // it is this step's own: the others go on
    }
  }
  for (const Candidate& candidate : found) {
    if (!is_due(candidate)) continue;
    const auto left_out = candidate.asked ? Result<bool>(false) : is_not_kept(candidate);
    if (left_out && left_out.value()) continue;
    if (!left_out) return left_out.error();
    const auto pushed = push(candidate);
    if (!pushed) failed(candidate, pushed.error());
    if (!pushed && stopping_) return Error(ECANCELED);
    changed = true;
    break;  // a newer step may be there by now
  }
  return changed;
}

// It has failed lately, or waits for a part of slot 0, and no other slot has pushed anything since.
bool SeriesPusher::is_resting(meta::InodeNumber step) {
  const Remembered& known = steps_[step];
  const auto& pushed = known.pushed;
  const bool has_news = pushed && !pushed->is_put && pushed->others < parts_of_others(pushed->image->tag());
  return !has_news && Clock::now() < known.not_before;
}

bool SeriesPusher::is_due(const Candidate& candidate) {
  const StepStatus& status = candidate.status;
  if (steps_[status.inode].pushed) return false;
  const auto state = states_.of(status.inode);
  const bool left_out = state && state->is_settled() && state->stage != Stage::committed;
  if (candidate.asked && left_out) return true;
  if (is_resting(status.inode) || (!candidate.asked && was_ended(candidate))) return false;
  const bool unpushed = states_.is_unpushed(series_, status.inode, status.fingerprint);
  const bool may_be_kept = state && state->stage == Stage::not_kept;  // the rules may have changed
  if (!unpushed && !may_be_kept && !is_changed_elsewhere(candidate)) return false;
  return candidate.asked || (!manual_ && !status.facts.in_use && status.quiet >= env_.quiet);
}

// Another slot has pushed the step again since it was committed: without this slot's part that is never committed.
bool SeriesPusher::is_changed_elsewhere(const Candidate& candidate) {
  const auto& at_rest = steps_[candidate.status.inode].others_at_rest;
  return at_rest && *at_rest < parts_of_others(candidate.status.facts.tag);
}

// The collector has ended its part, and nothing has happened since that could bring the other slots' parts.
bool SeriesPusher::was_ended(const Candidate& candidate) {
  const Remembered& known = steps_[candidate.status.inode];
  const bool is_same = known.ended == candidate.status.fingerprint && known.ended_as == agreed_id(candidate.status);
  return is_same && !is_changed_elsewhere(candidate);
}

SeriesPusher::PartsOfOthers SeriesPusher::parts_of_others(const std::string& tag) const {
  const auto found = others_.find(tag);
  return found == others_.end() ? PartsOfOthers() : found->second;
}

// What the other slots have of each tag. A push that has begun may wait for a part of ours.
Result<> SeriesPusher::list_others() {
  others_.clear();
  if (settings_.slots == 1) return success();
  const auto note = [&](const std::optional<meta::remote::PushName>& push, const io::ObjectInfo& object, bool is_part) {
    if (!push || push->slot == settings_.slot) return;
    PartsOfOthers& parts = others_[push->tag];
    ++parts.count;
    parts.has_lead = parts.has_lead || (is_part && push->slot == 0);
    parts.newest = std::max(parts.newest, object.changed);
  };
  const auto part = [&](const io::ObjectInfo& object) -> Result<> {
    if (object.size > meta::remote::kMostEndedBytes) note(meta::remote::parse_part_key(object.key), object, true);
    return success();
  };
  const auto begun = [&](const io::ObjectInfo& object) -> Result<> {
    note(meta::remote::parse_push_key(object.key), object, false);
    return success();
  };
  TRY(io::for_each_object(*remote_, meta::remote::kParts, part, limits()));
  return io::for_each_object(*remote_, meta::remote::kPushes, begun, limits());
}

// Of a series with rules rotation does it.
Result<> SeriesPusher::note_whole(const SeriesStatus& series) {
  TRY_ASSIGN(const meta::SeriesPolicy policy, meta::policy_of(env_.store, series_));
  if (!policy.set.empty()) return success();
  for (const StepStatus& step : series.steps) {
    if (!meta::formats::is_whole(step.facts.completeness) || step.is_known_whole()) continue;
    const auto noted = env_.writers.note_whole(step, [] {});
    if (!noted && noted.error().errno_value() != ENOENT) return noted.error();
  }
  return success();
}

// All that can be pushed, in the order in which it is to be.
Result<std::vector<SeriesPusher::Candidate>> SeriesPusher::candidates() {
  TRY_ASSIGN(SeriesStatus series, env_.step_facts.inspect_series(series_, "", false));
  const bool quiet = meta::wall_time(meta::now()) - series.changed >= env_.quiet;
  nothing_ = quiet ? why_no_steps(series) : std::string();
  TRY(note_whole(series));
  TRY(order_saves(env_.store, env_.step_facts.clock(), {facts_->id, series_, owner_.term}, series.steps));
  std::set<uint32_t> owners_of_whole;
  for (const StepStatus& status : series.steps) {
    if (status.facts.is_whole()) owners_of_whole.insert(status.facts.owner);
  }
  std::vector<Candidate> found;
  for (StepStatus& status : series.steps) {
    const bool beside_whole = owners_of_whole.contains(status.facts.owner);
    if (is_name_of_step(status.facts.tag) && !note_blocked(status, beside_whole)) found.push_back({std::move(status)});
  }
  std::vector<meta::InodeNumber> there;
  for (const Candidate& one : found) {
    const bool unpushed = states_.is_unpushed(series_, one.status.inode, one.status.fingerprint);
    const auto state = states_.of(one.status.inode);
    if (!unpushed && state->stage == Stage::committed) there.push_back(one.status.inode);
    // A step that was renamed is another one there. One without a fingerprint was asked for, or blocked, until now.
    const bool is_new = !state || state->tag != one.status.facts.tag || state->fingerprint == io::Digest{};
    const bool has_changed = state && state->fingerprint != one.status.fingerprint;
    const bool was_final = state && (state->is_settled() || state->stage == Stage::refused);
    if (is_new || (has_changed && was_final)) states_.set(series_, one.status.inode, state_of(one));
  }
  TRY(list_others());
  {
    const io::MutexLock lock(mutex_);
    std::erase_if(asked_, [&there](const auto& asked) {  // but what was asked for since they were looked at
      return !asked.second.fresh && std::ranges::find(there, asked.first) != there.end();
    });
    for (Candidate& one : found) {
      const auto asked = asked_.find(one.status.inode);
      one.asked = asked != asked_.end();
      one.again = one.asked && asked->second.again;
      if (one.asked && std::exchange(asked->second.fresh, false)) steps_[one.status.inode].not_before = {};
      one.awaited = others_.contains(one.status.facts.tag);
    }
  }
  std::ranges::stable_sort(found, [](const Candidate& one, const Candidate& other) {
    return std::tie(one.asked, one.awaited, one.status.saved) >
           std::tie(other.asked, other.awaited, other.status.saved);
  });
  return found;
}

PushState SeriesPusher::state_of(const Candidate& candidate) const {
  PushState state;
  state.tag = candidate.status.facts.tag;
  state.bytes = candidate.status.bytes;
  state.fingerprint = candidate.status.fingerprint;
  return state;
}

// What was removed here, moved away, or given a name that no step has, is not pushed any more.
Result<> SeriesPusher::forget_missing() {
  const meta::Tree& tree = env_.store.tree();
  for (const auto& [step, state] : states_.all(series_)) {
    const auto record = tree.inode(step);
    if (!record && record.error().errno_value() != ENOENT) return record.error();
    const bool is_here = record && record.value().nlink != 0 && record.value().parent == series_;
    const std::string name = is_here ? meta::name_of(tree, step) : std::string();
    const auto is_step = is_here ? meta::is_step(tree, step, name) : Result<bool>(false);
    if (!is_step) return is_step.error();
    if (is_step.value() && is_name_of_step(name) && name == state.tag) continue;
    states_.forget(step);
    steps_.erase(step);
    if (::unlink(journal_of(state.tag).c_str()) != 0 && errno != ENOENT) {
      log::warn("{}: {}", journal_of(state.tag), std::strerror(errno));
    }
    const io::MutexLock lock(mutex_);
    asked_.erase(step);
  }
  return success();
}

meta::remote::PushSettings SeriesPusher::push_settings(meta::InodeNumber step) {
  meta::remote::PushSettings settings;
  settings.folder = folder_;
  settings.parallel = kFilesAtOnce;
  settings.limit = &limit_;
  settings.time = kRequestTime;
  settings.file_time = kFileTime;
  settings.stop = &stopping_;
  settings.progress = [this, step](const auto& progress) { note_progress(step, progress); };
  return settings;
}

// Of what has left since somebody asked last.
uint64_t SeriesPusher::bytes_per_second() const {
  const auto now = Clock::now();
  const uint64_t sent = remote_->counts().bytes_sent;
  const io::MutexLock lock(mutex_);
  if (now - rate_from_ < kRateWindow) return rate_;
  const std::chrono::duration<double> seconds = now - rate_from_;
  rate_ = rate_from_ == Clock::time_point()
              ? 0
              : static_cast<uint64_t>(static_cast<double>(sent - rate_bytes_) / seconds.count());
  rate_from_ = now;
  rate_bytes_ = sent;
  return rate_;
}

void SeriesPusher::note_progress(meta::InodeNumber step, const meta::remote::PushProgress& progress) {
  auto state = states_.of(step);
  if (!state || state->stage != Stage::pushing) return;
  state->bytes = progress.bytes;
  state->sent = progress.sent;
  state->copied = progress.copied;
  states_.set(series_, step, *std::move(state));
}

Result<> SeriesPusher::push(const Candidate& candidate) {
  const meta::InodeNumber step = candidate.status.inode;
  TRY_ASSIGN(const bool better, is_better_there(candidate));
  if (better) return success();
  Remembered& known = steps_[step];
  known.ended.reset();
  const auto before = states_.of(step);
  const bool was_refused = before && before->stage == Stage::refused;  // then it may be so again
  PushState state = state_of(candidate);
  state.stage = Stage::pushing;
  if (!was_refused) states_.set(series_, step, state);
  Pushed pushed;
  pushed.fingerprint = candidate.status.fingerprint;
  pushed.again = candidate.again;
  pushed.others = parts_of_others(candidate.status.facts.tag);
  TRY(env_.store.tree().sync());  // the order of the save stays what it is there
  TRY_ASSIGN(pushed.image,
             LocalStep::make(env_, step, [this](auto) { return thread_.wait_for(std::chrono::nanoseconds(0)); }));
  if (was_refused) states_.set(series_, step, state);
  TRY_ASSIGN(const bool fetched, candidate.again ? Result<bool>(false) : is_as_fetched(candidate, *pushed.image));
  if (fetched) return success();
  TRY_ASSIGN(const bool removed, candidate.asked ? Result<bool>(false) : is_removed_there(candidate, *pushed.image));
  if (removed) return success();
  known.pushed = std::move(pushed);
  return go_on(step, *known.pushed);
}

// `pushed` may be gone afterwards. Which save it is may have been told since its part was put, or sent.
Result<> SeriesPusher::go_on(meta::InodeNumber step, Pushed& pushed) {
  TRY_ASSIGN(const bool is_told, settings_.slots > 1 ? pushed.image->look_at_save() : Result<bool>(false));
  if (is_told) pushed.known.own_save.reset();
  if (!pushed.is_put || is_told) {
    const auto sent = send(step, pushed);
    if (!sent) steps_[step].pushed.reset();
    if (!sent || !pushed.is_put) return sent;
  }
  return decide(step, pushed);
}

// Sends the files, and puts the part, if slot 0 has one of the same save. What waits for that looks for it when other
// slots have pushed something, and each minute.
Result<> SeriesPusher::send(meta::InodeNumber step, Pushed& pushed) {
  const std::string& tag = pushed.image->tag();
  pushed.others = parts_of_others(tag);
  const std::string remote = facts_->id;
  const auto is_ours = meta::remote::check_owner(*remote_, settings_.slot, owner_, limits());
  if (!is_ours && is_ours.error().errno_value() == ENOENT) facts_.reset();  // somebody has emptied the remote
  TRY(is_ours);
  TRY_ASSIGN(auto journal, meta::remote::PushJournal::open(journal_of(tag), remote));
  auto settings = push_settings(step);
  settings.again = pushed.again;
  TRY_SET(pushed.part, meta::remote::push_part(*remote_, slot_, *pushed.image, journal, pushed.known, settings));
  pushed.is_put = pushed.part.waits.empty();
  Remembered& known = steps_[step];
  known.forget_failures();
  {
    const io::MutexLock lock(mutex_);
    const auto asked = asked_.find(step);
    if (asked != asked_.end() && !asked->second.fresh) asked_.erase(asked);  // else it was asked for since
    if (pushed.is_put) ++report_.pushed;
    report_.sent += pushed.part.sent;
    report_.copied += pushed.part.copied;
  }
  PushState state = states_.of(step).value_or(PushState());
  const bool was_waiting = state.stage == Stage::waiting;
  state.stage = Stage::waiting;
  if (!was_waiting || pushed.part.sent > 0) {
    state.sent = pushed.part.sent;
    state.copied = pushed.part.copied;
  }
  state.error.clear();
  state.waits_for = pushed.part.waits;
  state.missing.clear();
  if (!pushed.is_put && !pushed.others.has_lead) state.missing = {0};
  states_.set(series_, step, state);
  if (!pushed.is_put) known.not_before = Clock::now() + kLongestRetry;
  if (pushed.is_put) {
    log::info("{}: its part is in {} ({} bytes sent, {} were there)", env_.store.tree().path_of(step), settings_.url,
              pushed.part.sent, pushed.part.copied);
  }
  return success();
}

// `pushed` may be gone afterwards.
Result<> SeriesPusher::decide(meta::InodeNumber step, Pushed& pushed) {
  TRY_ASSIGN(const TagStatus status,
             meta::remote::decide(*remote_, slot_, pushed.part, pushed.known, pushed.memory, push_settings(step)));
  Remembered& known = steps_[step];
  known.forget_failures();
  PushState state = states_.of(step).value_or(PushState());
  state.fingerprint = pushed.fingerprint;
  state.missing = status.missing;
  state.error.clear();
  state.waits_for.clear();
  state.notes = status.notes;
  const bool rests = status.state == TagStatus::State::ended;
  switch (status.state) {
    case TagStatus::State::committed:
      state.stage = Stage::committed;
      state.name = status.commit->name();
      log::info("{}: committed as {}/{}", env_.store.tree().path_of(step), settings_.url, state.name);
      break;
    case TagStatus::State::waits:
    case TagStatus::State::incomplete: {
      // What its fingerprint does not tell, as the mode of an empty folder.
      TRY_ASSIGN(const bool current, status.missing.empty() ? pushed.image->is_current() : Result<bool>(true));
      state.stage = current ? Stage::waiting : Stage::unpushed;
      state.waits_for = status.reason;
      if (!current) break;
      if (status.state != TagStatus::State::incomplete) break;
      TRY_ASSIGN(const bool alone, is_left_alone(step));
      if (!alone) break;
      state.stage = Stage::refused;
      state.error = status.reason + kLeftAlone;
      break;
    }
    case TagStatus::State::refused:
      state.stage = Stage::refused;
      state.error = status.reason;
      break;
    case TagStatus::State::ended:
      state.stage = Stage::waiting;
      state.waits_for = status.reason + kWhenPushedAgain;
      break;
    case TagStatus::State::push_again:
      state.stage = Stage::unpushed;
      state.waits_for = status.reason;
      break;
  }
  const bool committed = state.stage == Stage::committed;
  const bool done = committed || rests || state.stage == Stage::unpushed;
  const std::string name = state.name;
  states_.set(series_, step, std::move(state));
  if (committed) TRY(note_pushed(step, name));
  if (committed) TRY(note_pushed_by_hand(step, *pushed.image, *status.commit));
  const PartsOfOthers others = parts_of_others(pushed.image->tag());
  if (committed) known.others_at_rest = others;
  if (rests) known.others_at_rest = pushed.others;  // of the round before: what has come since is new
  pushed.others = others;
  if (rests) {
    TRY_ASSIGN(const StepStatus now, env_.step_facts.inspect_step(step));
    known.ended = pushed.fingerprint;
    known.ended_as = agreed_id(now);
  }
  if (done) known.pushed.reset();
  if (committed) {
    const io::MutexLock lock(mutex_);
    ++report_.committed;
  }
  if (committed) wake_others_();
  return success();
}

void SeriesPusher::failed(const Candidate& candidate, const Error& error) {
  const meta::InodeNumber step = candidate.status.inode;
  const int code = error.errno_value();
  if (code == ECANCELED && stopping_) return;
  const bool changes = code == ESTALE || code == EBUSY || code == ENOENT, refused = is_hopeless(code);
  Remembered& known = steps_[step];
  const int before = std::min(known.failures_in_a_row, 5);
  known.not_before = Clock::now() + (changes ? kFirstRetry : std::min(kLongestRetry, kFirstRetry * (1 << before)));
  if (!changes) ++known.failures_in_a_row;
  PushState state = states_.of(step).value_or(state_of(candidate));
  if (state.stage == Stage::pushing || state.stage == Stage::refused) state.stage = Stage::unpushed;
  if (!changes && state.error != error.message()) {
    log::warn("{}: it is not pushed: {}", env_.store.tree().path_of(step), error.message());
  }
  if (refused) state.stage = Stage::refused;
  (changes ? state.waits_for : state.error) = error.message();
  if (changes) state.error.clear();
  states_.set(series_, step, std::move(state));
  const io::MutexLock lock(mutex_);
  if (!changes) ++report_.failures;
  if (refused) asked_.erase(step);
}

}  // namespace ckptfs::fs
