#include "fs/steps/set_aside.h"

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "io/log.h"
#include "meta/steps/partial.h"
#include "meta/steps/policy.h"
#include "meta/steps/steps.h"

namespace ckptfs::fs {
namespace {

using meta::WritersState;
using meta::formats::Completeness;

constexpr std::chrono::milliseconds kUntilReleased{500};
constexpr std::chrono::milliseconds kPoll{2};

}  // namespace

// --- the rule

Result<> SetAside::start() {
  TRY_ASSIGN(const auto all, meta::list_series(tree_));
  for (const meta::InodeNumber series : all) TRY(read_rule(series, true));
  return success();
}

Result<> SetAside::read_rule(meta::InodeNumber series, bool at_start) {
  TRY_ASSIGN(const meta::SeriesPolicy policy, meta::policy_of(store_, series));
  const bool has_rule = policy.set.contains(Abandonment::kRule);
  if (policy.set.empty()) {
    writers_.unwatch(series, StepWriters::kRules);
  } else {
    writers_.watch(series, StepWriters::kRules);
  }
  {
    const io::MutexLock lock(mutex_);
    const bool had_rule = series_.contains(series);
    if (has_rule) series_.insert(series);
    if (!has_rule) series_.erase(series);  // its steps go when they are looked at next
    watches_ = !series_.empty();
    if (has_rule == had_rule) return success();
  }
  return has_rule ? read_steps(series, at_start) : success();
}

// An empty folder that is there at the start without a record is one whose mkdir the daemon did not live to answer.
// Asks two records of each step, and none of its files.
Result<> SetAside::read_steps(meta::InodeNumber series, bool at_start) {
  TRY_ASSIGN(const auto entries, tree_.list(series));
  for (const meta::DirectoryEntry& entry : entries) {
    TRY_ASSIGN(const bool named, meta::may_be_step(tree_, series, entry.name));
    if (entry.type != S_IFDIR || !named) continue;
    auto found = meta::ledger_of(store_, entry.inode);
    if (!found) {
      log::warn("{}/{} is never set aside: {}", tree_.path_of(series), entry.name, found.error().message());
      continue;
    }
    meta::LedgerEntry& known = found.value();
    bool unfinished = known.unfinished;
    if (known == meta::LedgerEntry() && at_start) {
      TRY_ASSIGN(const bool has_files, store_.index().has_entries(entry.inode));
      unfinished = !has_files;
    }
    if (!unfinished) continue;
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(entry.inode));
    const io::MutexLock lock(mutex_);
    Unfinished* const added = find_or_add(entry.inode, record.uid);
    if (added != nullptr) added->writers = std::move(known.writers);
  }
  return success();
}

bool SetAside::is_watched(meta::InodeNumber series) const {
  const io::MutexLock lock(mutex_);
  return series_.contains(series);
}

// --- who writes

// None: the owner has too many.
SetAside::Unfinished* SetAside::find_or_add(meta::InodeNumber step, uint32_t owner) {
  if (const auto at = unfinished_.find(step); at != unfinished_.end()) return &at->second;
  size_t& number = of_owner_[owner];
  if (number >= kMostOfOwner) return nullptr;
  ++number;
  Unfinished& added = unfinished_[step];
  added.owner = owner;
  return &added;
}

void SetAside::erase(meta::InodeNumber step) {
  const auto at = unfinished_.find(step);
  if (at == unfinished_.end() || at->second.busy) return;
  if (const auto owner = of_owner_.find(at->second.owner); owner != of_owner_.end() && --owner->second == 0) {
    of_owner_.erase(owner);
  }
  unfinished_.erase(at);
}

void SetAside::note(const StepWriters::Written& written) {
  const auto named = meta::may_be_step(tree_, written.series, meta::name_of(tree_, written.step));
  if (written.writers != nullptr && named && !named.value()) return;
  {
    const io::MutexLock lock(mutex_);
    const auto at = unfinished_.find(written.step);
    if (at != unfinished_.end()) at->second.written = Clock::now();
    if (written.writers == nullptr || !series_.contains(written.series)) return;
    Unfinished* const known = find_or_add(written.step, written.owner);
    if (known == nullptr) return;
    // Others may have told of themselves meanwhile, and of more than are in the ledger.
    for (const meta::StepWriter& writer : *written.writers) {
      const auto is_it = [&writer](const meta::StepWriter& one) { return one.is_same(writer); };
      if (std::ranges::none_of(known->writers, is_it)) known->writers.push_back(writer);
    }
    known->ended.reset();
    known->complete = false;
  }
  // Until now the kernel was allowed to remember the name for a day.
  notifications_.name_changed(written.series, meta::name_of(tree_, written.step));
}

void SetAside::forget(meta::InodeNumber inode) {
  if (!watches_) return;
  const io::MutexLock lock(mutex_);
  series_.erase(inode);
  erase(inode);
}

void SetAside::note_complete(meta::InodeNumber step) {
  const io::MutexLock lock(mutex_);
  erase(step);
}

// --- who asks

bool SetAside::is_unfinished(meta::InodeNumber step) const {
  if (!watches_) return false;
  const io::MutexLock lock(mutex_);
  return unfinished_.contains(step);
}

std::vector<meta::InodeNumber> SetAside::find_abandoned(std::span<const meta::InodeNumber> inodes, uint32_t user) {
  std::vector<meta::InodeNumber> found;
  if (!watches_) return found;
  std::vector<std::pair<meta::InodeNumber, std::vector<meta::StepWriter>>> asked;
  {
    const io::MutexLock lock(mutex_);
    for (const meta::InodeNumber inode : inodes) {
      const auto at = unfinished_.find(inode);
      if (at == unfinished_.end() || at->second.owner != user || at->second.held || at->second.complete) continue;
      if (may_go_on(at->second)) continue;
      asked.emplace_back(inode, at->second.writers);
    }
  }
  std::map<meta::Process, bool> known;  // most steps have the same writers
  const auto has_ended = [&known](const meta::Process& process) {
    const auto [at, is_new] = known.try_emplace(process);
    if (is_new) at->second = meta::has_ended(process);
    return at->second;
  };
  for (const auto& [inode, writers] : asked) {
    if (meta::state_of_writers(writers, here_, has_ended) == WritersState::ended) found.push_back(inode);
  }
  return found;
}

// Commands wrote to it a moment ago, so that others may follow.
bool SetAside::may_go_on(const Unfinished& known) const {
  return meta::are_commands(known.writers, here_) && Clock::now() < known.written + 2 * quiet_;
}

std::optional<std::vector<meta::StepWriter>> SetAside::writers_of(meta::InodeNumber step) const {
  const io::MutexLock lock(mutex_);
  const auto at = unfinished_.find(step);
  return at == unfinished_.end() ? std::nullopt : std::optional(at->second.writers);
}

bool SetAside::begin_inspection(meta::InodeNumber step, const std::function<void()>& otherwise) {
  {
    const io::MutexLock lock(mutex_);
    const auto at = unfinished_.find(step);
    if (at != unfinished_.end()) {
      const bool busy = std::exchange(at->second.busy, true);
      if (busy && otherwise) at->second.waiting.push_back(otherwise);
      return !busy;
    }
  }
  if (otherwise) otherwise();
  return false;
}

void SetAside::settle(const std::vector<meta::InodeNumber>& steps, uint32_t user, const std::function<void()>& then) {
  const auto left = std::make_shared<std::atomic<size_t>>(steps.size() + 1);
  const std::function<void()> one_less = [left, then] {
    if (--*left == 0) then();
  };
  for (const meta::InodeNumber step : steps) {
    if (!begin_inspection(step, one_less)) continue;
    const auto started = lanes_.start(user, [this, step, one_less] {
      end_inspection(step, inspect(step, true));
      one_less();
    });
    if (started) continue;
    end_inspection(step, Outcome::ask_again);
    one_less();
  }
  one_less();
}

void SetAside::settle_all() {
  std::vector<std::pair<meta::InodeNumber, std::vector<meta::StepWriter>>> all;
  {
    const io::MutexLock lock(mutex_);
    for (const auto& [step, known] : unfinished_) {
      if (!known.complete && !may_go_on(known)) all.emplace_back(step, known.writers);
    }
  }
  for (const auto& [step, writers] : all) {
    if (stopping_) return;
    const WritersState state = meta::state_of_writers(writers, here_, meta::has_ended);
    if (state == WritersState::unknown) {
      leave_alone(step,
                  "nobody can tell whether a process that wrote to it has ended (it is of another container, or was "
                  "before the daemon moved to another one); this is over with the next boot");
    }
    if (state != WritersState::ended || !begin_inspection(step, {})) continue;
    const Outcome outcome = inspect(step, false);
    if (outcome != Outcome::ask_again || !inspect_patiently(step)) end_inspection(step, outcome);
  }
}

// True: somebody has come meanwhile who waits for what a patient inspection finds, which has begun.
bool SetAside::inspect_patiently(meta::InodeNumber step) {
  uint32_t owner = 0;
  {
    const io::MutexLock lock(mutex_);
    const auto at = unfinished_.find(step);
    if (at == unfinished_.end() || at->second.waiting.empty()) return false;
    owner = at->second.owner;
  }
  return lanes_.start(owner, [this, step] { end_inspection(step, inspect(step, true)); }).has_value();
}

void SetAside::end_inspection(meta::InodeNumber step, Outcome outcome) {
  std::vector<std::function<void()>> waiting;
  {
    const io::MutexLock lock(mutex_);
    const auto at = unfinished_.find(step);
    if (at == unfinished_.end()) return;
    at->second.busy = false;
    at->second.held = outcome == Outcome::hold;
    at->second.complete = outcome == Outcome::complete;
    waiting.swap(at->second.waiting);
    if (outcome == Outcome::forget) erase(step);
  }
  for (const auto& answer : waiting) answer();
}

void SetAside::leave_alone(meta::InodeNumber step, const std::string& why) {
  {
    const io::MutexLock lock(mutex_);
    const auto at = unfinished_.find(step);
    if (at == unfinished_.end() || at->second.told == why) return;
    at->second.told = why;
  }
  log::info("{}: incomplete or not, it is not set aside: {}", tree_.path_of(step), why);
}

// --- the inspection

SetAside::Outcome SetAside::inspect(meta::InodeNumber step, bool patient) {
  const auto outcome = try_inspect(step, patient);
  if (outcome) return outcome.value();
  if (is_gone(outcome.error()) || stopping_) return Outcome::ask_again;  // somebody removes files of it
  leave_alone(step, outcome.error().message());
  return Outcome::hold;
}

Result<SetAside::Outcome> SetAside::try_inspect(meta::InodeNumber step, bool patient) {
  if (stopping_) return Outcome::ask_again;
  TRY_ASSIGN(const auto record, none_if_gone(tree_.inode(step)));
  if (!record) return Outcome::forget;
  const meta::InodeNumber series = record->parent;
  const std::string path = tree_.path_of(step), tag = meta::name_of(tree_, step);
  TRY_ASSIGN(const auto known, store_.index().find_step(step));
  const bool is_over = known && (known->sealed || known->being_removed);
  TRY_ASSIGN(const bool named, meta::may_be_step(tree_, series, tag));
  if (record->nlink == 0 || !is_watched(series) || !named || is_over) return Outcome::forget;
  TRY_ASSIGN(const auto objection, find_objection(series, step, tag, patient));
  if (objection) return *objection;
  TRY_ASSIGN(const auto judgement, abandonment_.judge(series, step));
  if (meta::formats::is_whole(judgement.completeness)) return Outcome::complete;
  if (judgement.completeness == Completeness::unknown) {
    leave_alone(step, "its state cannot be told: " + judgement.reason);
    return Outcome::forget;
  }
  TRY_ASSIGN(const auto meanwhile, find_objection(series, step, tag, false));
  if (meanwhile) return *meanwhile;
  const auto writers = writers_of(step);
  const bool ended = writers && meta::state_of_writers(*writers, here_, meta::has_ended) == WritersState::ended;
  if (!ended) return Outcome::ask_again;  // somebody has come meanwhile
  TRY_ASSIGN(const std::string name, meta::set_aside(store_, series, step, tag));
  notifications_.name_changed(series, tag);
  notifications_.attributes_changed(series);
  ++count_;
  log::warn("{} is set aside as {}: {}, and the processes that wrote it have ended", path, name, judgement.reason);
  return Outcome::forget;
}

// Why the step keeps its name for now, whatever it holds.
Result<std::optional<SetAside::Outcome>> SetAside::find_objection(meta::InodeNumber series, meta::InodeNumber step,
                                                                  const std::string& tag, bool patient) {
  TRY_ASSIGN(const auto protection, abandonment_.find_protection(series, step, tag));
  if (!protection.empty()) {
    leave_alone(step, protection);
    return std::optional(Outcome::hold);
  }
  TRY_ASSIGN(const bool closed, wait_until_closed(step, patient));
  if (!closed) {
    leave_alone(step, "a file or a folder of it is open");
    return std::optional(Outcome::ask_again);
  }
  const auto writers = writers_of(step);
  if (!writers || !meta::are_commands(*writers, here_)) return std::optional<Outcome>();
  TRY_ASSIGN(const bool in_use, abandonment_.is_in_use(step));
  if (!in_use) return std::optional<Outcome>();
  leave_alone(step, "commands such as cp wrote to it, and others may follow until nothing has had it open for " +
                        std::to_string(2 * quiet_.count()) + " s");
  return std::optional(Outcome::ask_again);
}

SetAside::Clock::time_point SetAside::first_inspected(meta::InodeNumber step) {
  const io::MutexLock lock(mutex_);
  const auto at = unfinished_.find(step);
  if (at == unfinished_.end()) return {};
  if (!at->second.ended) at->second.ended = Clock::now();
  return *at->second.ended;
}

Result<bool> SetAside::wait_until_closed(meta::InodeNumber step, bool patient) {
  const auto end = first_inspected(step) + kUntilReleased;
  while (true) {
    TRY_ASSIGN(const bool open, abandonment_.is_open(step));
    if (!open) return true;
    if (!patient || stopping_ || Clock::now() >= end) return false;
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace ckptfs::fs
