// Rotation: carries out the policies of series (meta/policy.h, meta/retention.h). A thread inspects each series that
// has a policy when something may have changed. It arms policies, removes steps that no rule keeps, and seals steps.
//
// A step that the rules would remove and that is protected (docs/rotation.md) stays; the report names it.
//
// Thread safety: look() and report() from any thread; start() and stop() from one. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fs/adopt/file_sync.h"
#include "fs/open/open_files.h"
#include "fs/steps/removals.h"
#include "fs/steps/saver.h"
#include "fs/steps/step_facts.h"
#include "meta/policy.h"
#include "meta/retention.h"

namespace ckptfs::fs {

// A series, and what a policy says of each of its steps.
struct SeriesJudgement {
  meta::SeriesPolicy policy;
  SeriesStatus look;
  meta::Judgement judgement;  // a decision for each of look.steps
};

// Of a policy that is set, or might be.
struct Rules {
  meta::PolicyText text;
  meta::RuleSetters setters;
};

struct RotationReport {
  uint64_t removed = 0;               // steps, since the mount
  uint64_t failures = 0;              // of any of it; each is logged
  std::vector<std::string> held;      // "/steps/global_step5: latest": no rule keeps it, but for this it would go
  std::vector<std::string> warnings;  // caps that cannot be met, and why nothing is removed
};

class Rotation {
 public:
  // `quiet`: how long nothing must have happened to what it acts on.
  Rotation(meta::Store& store, OpenFileTable& files, FileSync& file_sync, StepFactsFinder& step_facts,
           Removals& removals, Saver& saver, std::chrono::seconds quiet)
      : store_(store),
        tree_(store.tree()),
        files_(files),
        file_sync_(file_sync),
        step_facts_(step_facts),
        removals_(removals),
        saver_(saver),
        quiet_(quiet) {}
  ~Rotation() { stop(); }

  void start();
  void stop();
  // Something happened that it may have to act on.
  void wake();
  RotationReport report() const;

  // What `rules`, or else those that are set, say; nothing is done. EINVAL, in words, for bad rules.
  Result<SeriesJudgement> look(meta::InodeNumber series, const std::optional<Rules>& rules);

 private:
  using Clock = std::chrono::steady_clock;
  struct Findings {
    std::vector<std::string> held, warnings;
  };

  void run();
  bool wait(Clock::duration time);  // false: the end
  Result<> look_after_all();
  Result<> look_after(meta::InodeNumber series, Findings& findings);
  // Each owner's steps by themselves, so that nobody's steps make another's go.
  Result<meta::Judgement> judge(const Rules& rules, const SeriesStatus& look) const;
  Result<meta::Judgement> judge_owner(const Rules& rules, const SeriesStatus& look, const std::vector<size_t>& steps,
                                      const std::vector<meta::InodeNumber>& gone_before) const;
  // True: what is armed has changed, or may with the next look.
  Result<bool> arm(meta::InodeNumber series, const meta::SeriesPolicy& policy, const SeriesStatus& look);
  Result<> carry_out(meta::InodeNumber series, const meta::Policy& policy, const SeriesStatus& look,
                     const meta::Judgement& judgement, Findings& findings);
  Result<> seal(const Rules& rules, const SeriesStatus& look, const meta::Judgement& judgement);
  Result<uint64_t> exclusive_bytes(std::vector<meta::InodeNumber> steps) const;
  // All that stays is on the disk and in the durable index when it returns.
  Result<> make_durable(meta::InodeNumber series, const SeriesStatus& look, const meta::Judgement& judgement) const;
  Result<bool> is_as_it_was(meta::InodeNumber series, const StepStatus& complete) const;
  // Why it is not to go after all, as things are now; empty: it is.
  Result<std::string> second_thought(meta::InodeNumber series, const SeriesStatus& look, const StepStatus& step,
                                     const std::vector<const StepStatus*>& newest) const;
  Result<> remove(meta::InodeNumber series, const StepStatus& step, const meta::Decision& decision);
  Result<> note_clock();
  bool is_stopping() const;
  void note_held(const std::string& path, const meta::Policy& policy, const StepStatus& step,
                 const meta::Decision& decision, Findings& findings) const;
  void failed(const std::string& what, const Error& error);

  meta::Store& store_;
  meta::Tree& tree_;
  OpenFileTable& files_;
  FileSync& file_sync_;
  StepFactsFinder& step_facts_;
  Removals& removals_;
  Saver& saver_;
  const std::chrono::seconds quiet_;
  Clock::time_point started_;      // the thread's own, as is clock_noted_
  Clock::time_point clock_noted_;  // the store's

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  bool woken_ = false;     // guarded by mutex_
  RotationReport report_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace ckptfs::fs
