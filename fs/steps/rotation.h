// Rotation: removes the steps that the rules of a series do not keep. What users see is in docs/rotation.md. A thread
// looks at each series that has rules whenever something may have changed, and every few seconds.
//
// Who does what:
//   - meta/steps/policy.h keeps the rules of a series, with the credentials of who set each, and arms them;
//   - fs/steps/step_facts.h finds the facts: is a step complete, in use, pinned, named by `latest`;
//   - meta/steps/retention.h decides, as a pure function of facts, the time, and the room that removals would make;
//   - fs/steps/set_aside.h renames steps that nobody will finish, also between the rounds, and without being armed;
//   - this file carries it out: makes durable what stays, asks once more, removes (fs/steps/removals.h), seals.
//
// What protects a step is one table (meta/steps/protection.h), which is asked again right before a removal. For twice
// the quiet time after a start nothing is removed, as nobody knows who had what open.
//
// Nothing is removed, either, while files are not inspected after a crash (meta/store/inspection.h), while nobody can
// tell what `latest` names (where it is another user's file: nothing of that user), or while a step that stays cannot
// be made durable. A removal is durable at once. So each complete step that stays, and `latest`, are synced before it.
//
// Thread safety: preview() and report() from any thread; start() and stop() from one. Lock: mutex_ (a leaf).
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fs/open/file_sync.h"
#include "fs/open/open_files.h"
#include "fs/steps/background_thinner.h"
#include "fs/steps/removals.h"
#include "fs/steps/saver.h"
#include "fs/steps/set_aside.h"
#include "fs/steps/step_facts.h"
#include "io/background_thread.h"
#include "io/mutex.h"
#include "meta/steps/policy.h"
#include "meta/steps/retention.h"

namespace ckptfs::fs {

// A series, and what a policy says of each of its steps.
struct SeriesJudgement {
  meta::SeriesPolicy policy;
  SeriesStatus status;
  meta::Judgement judgement;  // a decision for each of status.steps
};

// The rules of a policy that is set or could be set, with the users who set them.
struct Rules {
  meta::PolicyText text;
  meta::RuleSetters setters;
};

struct RotationReport {
  uint64_t removed = 0;               // steps, since the mount
  uint64_t rounds = 0;                // a round ends when each series was looked at, at least once
  uint64_t failures = 0;              // of any of it; each is logged
  std::vector<std::string> held;      // "/steps/global_step5: latest": only this protection keeps it, no rule does
  std::vector<std::string> warnings;  // caps that cannot be met, and why nothing is removed
};

class Rotation {
 public:
  // `quiet`: how long nothing must have happened to what it acts on.
  Rotation(meta::Store& store, OpenFileTable& files, FileSync& file_sync, StepFactsFinder& step_facts,
           StepWriters& writers, SetAside& set_aside, Removals& removals, Saver& saver, Thinner& thinner,
           std::chrono::seconds quiet)
      : store_(store),
        tree_(store.tree()),
        files_(files),
        file_sync_(file_sync),
        step_facts_(step_facts),
        writers_(writers),
        set_aside_(set_aside),
        removals_(removals),
        saver_(saver),
        quiet_(quiet),
        thinner_(store, thinner, [this] { wake(); }) {}
  ~Rotation() { stop(); }

  void start();
  void stop();
  // To be called when something has happened that rotation may have to act on.
  void wake();
  RotationReport report() const;
  ThinningReport thinning_report() const { return thinner_.report(); }

  // Tells what `rules`, or else the rules that are set, would do with each step, and does nothing. EINVAL, in words,
  // for bad rules.
  Result<SeriesJudgement> preview(meta::InodeNumber series, const std::optional<Rules>& rules);

 private:
  using Clock = std::chrono::steady_clock;
  struct Findings {
    std::vector<std::string> held, warnings;
    bool in_vain = false;  // something was to be removed, and could not be
  };
  // When a series is looked at next, and what was found.
  struct Turn {
    Clock::time_point next;
    std::chrono::nanoseconds took{};
    bool looked_at = false;  // in this round
    Findings findings;
  };

  void run();
  Result<std::chrono::nanoseconds> rotate_all();
  std::chrono::nanoseconds look_at(meta::InodeNumber series, Turn& turn);
  Result<std::map<meta::InodeNumber, size_t>> find_divisors();
  void report_findings();
  Result<> rotate_series(meta::InodeNumber series, Findings& findings);
  // Judges each owner's steps by themselves, so that nobody's steps are removed because of another's.
  Result<meta::Judgement> judge(const Rules& rules, const SeriesStatus& status) const;
  Result<meta::Judgement> judge_owner(const Rules& rules, const SeriesStatus& status, const std::vector<size_t>& steps,
                                      const std::vector<meta::InodeNumber>& gone_before) const;
  // True: the armed policy has changed, or the next inspection may change it.
  Result<bool> arm(meta::InodeNumber series, const meta::SeriesPolicy& policy, const SeriesStatus& status);
  Result<> carry_out(meta::InodeNumber series, const meta::Policy& policy, const SeriesStatus& status,
                     const meta::Judgement& judgement, Findings& findings);
  Result<> seal(const meta::Policy& policy, const Rules& rules, const SeriesStatus& status,
                const meta::Judgement& judgement);
  // When it returns, all that stays is on the disk and in the durable index.
  Result<> make_durable(meta::InodeNumber series, const SeriesStatus& status, const meta::Judgement& judgement) const;
  Result<bool> try_make_durable(meta::InodeNumber series, const SeriesStatus& status, const meta::Judgement& judgement,
                                const std::string& what, Findings& findings) const;
  Result<> note_named(meta::InodeNumber series, const SeriesStatus& status);
  Result<bool> is_as_it_was(meta::InodeNumber series, const StepStatus& complete) const;
  // Why the step must stay after all, as things are now. Empty: it may be removed.
  Result<std::string> find_objection(meta::InodeNumber series, const SeriesStatus& status, const StepStatus& step,
                                     const meta::Decision& decision,
                                     const std::vector<const StepStatus*>& counted) const;
  void note_whole(const SeriesStatus& status, const std::string& path);
  // Has the next step thinned that is to be, the oldest one first.
  Result<> thin(meta::InodeNumber series, const meta::Policy& policy, const SeriesStatus& status,
                const meta::Judgement& judgement, Findings& findings);
  Result<> note_clock();
  void failed(const std::string& what, const Error& error);
  void count_round();

  meta::Store& store_;
  meta::Tree& tree_;
  OpenFileTable& files_;
  FileSync& file_sync_;
  StepFactsFinder& step_facts_;
  StepWriters& writers_;
  SetAside& set_aside_;
  Removals& removals_;
  Saver& saver_;
  const std::chrono::seconds quiet_;
  Clock::time_point started_;                // the thread's own, as is clock_noted_
  Clock::time_point clock_noted_;            // the store's
  std::map<meta::InodeNumber, Turn> turns_;  // the thread's own
  std::atomic<bool> woken_{false};

  mutable io::Mutex mutex_;
  RotationReport report_ GUARDED_BY(mutex_);
  BackgroundThinner thinner_;
  io::BackgroundThread thread_;
};

}  // namespace ckptfs::fs
