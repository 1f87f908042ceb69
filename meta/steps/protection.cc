#include "meta/steps/protection.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <tuple>

#include "meta/steps/policy.h"

namespace ckptfs::meta {
namespace {

constexpr uint64_t kAll = UINT64_MAX;

struct Row {
  Reason reason;
  const char* name;  // in `policy`, `ls` and `status`
  // Of protections only. It protects from these acts the newest `count` of each owner's steps of which `holds` is true.
  unsigned acts = 0;
  Holds holds = nullptr;
  const char* words = nullptr;
  const char* words_aside = nullptr;  // why it is not set aside; null: the same
  uint64_t count = kAll;
};

const std::array kRows{
    Row{Reason::newest, "newest", kLose, &StepFacts::is_complete,
        "it is the newest complete step, from which a training resumes", nullptr, 1},
    // What was copied in later is no reason to lose it.
    Row{Reason::newest_saved, "newest that was saved here", kLose, &StepFacts::is_saved,
        "it is the newest complete step that a training saved here", nullptr, 1},
    Row{Reason::newest_resumable, "newest with more than swap state", kLose, &StepFacts::is_resumable,
        "it is the newest complete step with more than swap state, from which DeepSpeed resumes", nullptr, 1},
    // Those of each run (complete_steps_of_runs): two trainings may save into one series.
    Row{Reason::newest_of_run, "newest of its run", kLose, &StepFacts::is_complete,
        "it is the newest complete step of a process that still runs", nullptr, 1},
    Row{Reason::newest_before, "newest before one that is saved again", kLose, &StepFacts::is_settled,
        "it is the newest complete step that is not being saved again", nullptr, 1},
    Row{Reason::pinned, "pinned", kLose | kSetAside, &StepFacts::pinned, "it is pinned; unpin it first (ckptfs unpin)",
        "it is pinned"},
    Row{Reason::latest, "latest", kLose | kSetAside, &StepFacts::latest, "`latest` names it",
        "the file `latest` names it, and a trainer that did not find it would begin anew; write the tag of a complete "
        "step into `latest`"},
    Row{Reason::best_model, "best model", kLose, &StepFacts::best_model,
        "a Trainer will load it at its end (best_model_checkpoint)"},
    Row{Reason::in_use, "in use", kLose, &StepFacts::in_use,
        "a file of it is open, or was a moment ago; try again later"},
    Row{Reason::unknown, "unknown", kLose, &StepFacts::is_unknown, "it cannot be judged now"},
    Row{Reason::out_of_reach, "its setter may not remove it", kLose | kSetAside, &StepFacts::out_of_reach,
        "the user who set the rule could not remove it by hand"},
    // As many as hold_unpushed says, complete or not: a machine of several cannot tell alone whether one is complete.
    Row{Reason::unpushed, "not pushed yet", kLose, &StepFacts::unpushed,
        "it is not pushed yet (hold_unpushed says how many such steps stay as they are)", nullptr, kHoldUnpushed},
    Row{Reason::elsewhere, "on several machines", kSetAside, &StepFacts::elsewhere,
        "other machines have other files of it (ckptfs remote status)"},
    Row{Reason::keep_last, "keep_last"},
    Row{Reason::keep_every, "keep_every"},
    Row{Reason::keep_for, "keep_for"},
    Row{Reason::keep_best, "keep_best"},
    Row{Reason::no_rule, "no rule"},
    Row{Reason::keep_partial, "keep_partial"},
    Row{Reason::incomplete, "incomplete"},
    Row{Reason::no_rule_keeps_it, "no rule keeps it"},
    Row{Reason::keep_partial_is_over, "keep_partial"},
    Row{Reason::keep_unknown_is_over, "keep_unknown"},
    Row{Reason::max_bytes, "max_bytes"},
    Row{Reason::min_free, "min_free"},
};

const Row& row_of(Reason reason) { return *std::ranges::find(kRows, reason, &Row::reason); }

}  // namespace

bool is_seen_later(const StepFacts& a, const StepFacts& b) {
  return std::tie(a.seen, a.completed, a.number, a.tag) > std::tie(b.seen, b.completed, b.number, b.tag);
}

bool is_higher(const StepFacts& a, const StepFacts& b) {
  return a.number != b.number ? a.number > b.number : is_seen_later(a, b);
}

std::vector<size_t> rank(const std::vector<StepFacts>& steps, std::vector<size_t>& among) {
  std::vector<size_t> ranks(steps.size(), SIZE_MAX);
  for (const auto is_newer : {is_higher, is_seen_later}) {
    std::ranges::sort(among, [&](size_t a, size_t b) { return is_newer(steps[a], steps[b]); });
    for (size_t place = 0; place < among.size(); ++place) ranks[among[place]] = std::min(ranks[among[place]], place);
  }
  std::ranges::stable_sort(among, {}, [&](size_t at) { return ranks[at]; });
  return ranks;
}

std::vector<size_t> newest_of(const std::vector<StepFacts>& steps, const Holds& holds, uint64_t count) {
  std::map<uint32_t, std::vector<size_t>> by_owner;
  for (size_t at = 0; at < steps.size(); ++at) {
    if (holds(steps[at])) by_owner[steps[at].owner].push_back(at);
  }
  std::vector<size_t> newest;
  for (auto& [owner, own] : by_owner) {
    const std::vector<size_t> ranks = rank(steps, own);
    std::ranges::copy_if(own, std::back_inserter(newest), [&](size_t at) { return ranks[at] < count; });
  }
  return newest;
}

std::vector<Holds> complete_steps_of_runs(const std::vector<StepFacts>& steps) {
  std::set<Process> runs;
  for (const StepFacts& step : steps) runs.insert(step.runs.begin(), step.runs.end());
  std::vector<Holds> found;
  for (const Process& run : runs) {
    for (const auto& of : {&StepFacts::runs, &StepFacts::savers})
      found.emplace_back([run, of](const StepFacts& step) { return step.is_complete() && (step.*of).contains(run); });
  }
  return found;
}

std::optional<size_t> newest_to_resume(const std::vector<StepFacts>& steps, uint32_t user, uint32_t series_owner) {
  const auto is_newer = [user](const StepFacts& a, const StepFacts& b) {
    if (a.swap_only != b.swap_only) return b.swap_only;
    if (a.owner != b.owner) return a.owner == user;
    if (a.saved != b.saved) return a.saved;
    return a.saved ? is_seen_later(a, b) : is_higher(a, b);
  };
  std::optional<size_t> newest;
  for (size_t at = 0; at < steps.size(); ++at) {
    const bool trusted = steps[at].owner == user || steps[at].owner == series_owner;
    if (!trusted || !steps[at].is_complete()) continue;
    if (!newest || is_newer(steps[at], steps[*newest])) newest = at;
  }
  return newest;
}

const char* name_of(Reason reason) { return row_of(reason).name; }

const char* words_of(Reason reason, Act act) {
  const Row& row = row_of(reason);
  return act == kSetAside && row.words_aside != nullptr ? row.words_aside : row.words;
}

bool protects_from(Reason reason, Act act) { return (row_of(reason).acts & act) != 0; }

std::vector<Reason> own_protections(const StepFacts& step, Act act) {
  std::vector<Reason> found;
  for (const Row& row : kRows) {
    if ((row.acts & act) != 0 && row.count == kAll && row.holds(step)) found.push_back(row.reason);
  }
  return found;
}

// Of the rows about the newest steps, the first ones, a step gets one only.
Protections find_protections(const std::vector<StepFacts>& steps, std::optional<uint64_t> hold_unpushed) {
  Protections found(steps.size());
  for (const Row& row : kRows) {
    if ((row.acts & kLose) == 0) continue;
    const uint64_t count = row.reason == Reason::unpushed ? hold_unpushed.value_or(row.count) : row.count;
    const auto protect = [&](const Holds& holds) {
      for (const size_t at : newest_of(steps, holds, count)) {
        if (row.count != 1 || found[at].empty()) found[at].push_back(row.reason);
      }
    };
    if (row.reason != Reason::newest_of_run) {
      protect(row.holds);
      continue;
    }
    for (const Holds& holds : complete_steps_of_runs(steps)) protect(holds);
  }
  return found;
}

}  // namespace ckptfs::meta
