// What protects a step, whatever the rules say: one table of reasons, in protection.cc, and one pure function. Whoever
// removes, thins or sets aside a step asks it, and asks again right before. Tree::take_out(), in which each removal
// ends, refuses a pinned step once more, under the lock of the tree, and one whose name leads elsewhere by now.
//
// A seal does not protect: it forbids changes of a step, not its removal. An open file also keeps a step from being set
// aside, but is waited for (fs/steps/set_aside.cc).
//
// Newer is told in two ways: by the order in which rotation saw the steps complete (meta/steps/ledger.h), and by their
// numbers. They differ where an old step is copied in, or gets a new file that is no text: what training saved last has
// the highest number then. They also differ where a run starts again at small numbers. So a step's rank is the better
// of its places in the two orders, the newest first: a series may keep up to twice what a rule says, never less. Of
// steps that were seen at one moment the dates of their files decide, and nothing else does: the wall clock may have
// been wrong, and a copy may keep its times.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "meta/formats/completeness_judgement.h"
#include "meta/index/store_clock.h"
#include "meta/time.h"
#include "meta/tree/process.h"

namespace ckptfs::meta {

struct StepFacts {
  std::string tag;
  uint64_t number = 0;
  formats::Completeness completeness = formats::Completeness::unknown;
  WallTime completed;  // complete ones; of others, when anything in it changed last
  StoreTime seen{};    // since when rotation has seen it so
  bool pinned = false;
  bool latest = false;           // `latest` or another tracker file of the series names it
  bool best_model = false;       // a Trainer will load it at its end
  bool in_use = false;           // has a file open, or had a moment ago
  std::optional<double> metric;  // the one that keep_best asks for
  bool out_of_reach = false;     // who set the rules could not remove it
  bool untold = false;           // it may have one that cannot be read now, or is damaged: as one that is unknown
  std::string not_thinned{};     // why not, if that was tried and failed
  bool unpushed = false;         // its series has a remote, and it is not committed there yet
  uint32_t owner = 0;            // each owner's steps are judged by themselves
  bool elsewhere = false;        // other machines may have files of it
  std::set<Process> runs{};      // processes that saved it, or wrote to it since, and live
  std::set<Process> savers{};    // of these, those that may have done more than add a note
  bool written_again = false;    // by a run, after it was whole
  bool saved = false;            // by a program that is no command, as far as is known; others were copied in
  bool swap_only = false;        // it holds swap state and no weights: by itself nothing that DeepSpeed resumes from
  bool is_complete() const { return completeness == formats::Completeness::complete; }
  bool is_whole() const { return formats::is_whole(completeness); }
  bool is_unknown() const { return completeness == formats::Completeness::unknown || untold; }
  bool is_saved() const { return is_complete() && saved; }
  bool is_resumable() const { return is_complete() && !swap_only; }
  bool is_settled() const { return is_complete() && !written_again; }
};

// The two orders. Was `a` seen to complete later; has it the higher number? Ties are broken by dates, then by names.
bool is_seen_later(const StepFacts& a, const StepFacts& b);
bool is_higher(const StepFacts& a, const StepFacts& b);
// Sorts `among`, indices of steps, by rank, and returns the ranks, of all steps by their index. Of steps of equal rank
// the one that was seen later comes first.
std::vector<size_t> rank(const std::vector<StepFacts>& steps, std::vector<size_t>& among);
// The newest of each owner's steps of which `holds` is true: those with a rank below `count`.
using Holds = std::function<bool(const StepFacts&)>;
std::vector<size_t> newest_of(const std::vector<StepFacts>& steps, const Holds& holds, uint64_t count = 1);
// For each process that lives: its complete steps, once all that it wrote to, and once those that it saved. If it wrote
// to a newer step that it did not save, as an evaluation does, the newest of both matter.
std::vector<Holds> complete_steps_of_runs(const std::vector<StepFacts>& steps);
// Of which the newest is never lost. Who takes a step out looks at these again right before.
inline constexpr std::array kNeverLost{&StepFacts::is_complete, &StepFacts::is_saved, &StepFacts::is_resumable};
// The complete step that `user` goes on from: one of their own before one of `series_owner`, and never another user's,
// whose files may do anything to who loads them. Of these the one that was saved here last. Where the ledger knows of
// none who saved, the one with the highest number. One of swap state only if there is no other.
std::optional<size_t> newest_to_resume(const std::vector<StepFacts>& steps, uint32_t user, uint32_t series_owner);

// Why a step stays or goes.
enum class Reason {
  // it is protected
  newest,
  newest_saved,
  newest_resumable,
  newest_of_run,
  newest_before,
  pinned,
  latest,
  best_model,
  in_use,
  unknown,
  out_of_reach,
  unpushed,
  elsewhere,
  // stays by a rule, or because none is set
  keep_last,
  keep_every,
  keep_for,
  keep_best,
  no_rule,
  // incomplete: stays as long as a rule allows, or for good where none is set
  keep_partial,
  incomplete,
  // goes
  no_rule_keeps_it,
  keep_partial_is_over,
  keep_unknown_is_over,
  max_bytes,
  min_free,
};
enum Act : unsigned { kLose = 1, kSetAside = 2 };  // its files: by a removal or a thinning; its name

const char* name_of(Reason reason);                    // "keep_last", "in use"
const char* words_of(Reason reason, Act act = kLose);  // of a protection: why the step stays as it is
bool protects_from(Reason reason, Act act);

// What protects each of the steps from a removal or a thinning, in the order of the table.
using Protections = std::vector<std::vector<Reason>>;
Protections find_protections(const std::vector<StepFacts>& steps, std::optional<uint64_t> hold_unpushed);
// Those of them that the facts of the step tell alone, without any other step's.
std::vector<Reason> own_protections(const StepFacts& step, Act act);

}  // namespace ckptfs::meta
