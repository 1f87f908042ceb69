// Thins steps: of a checkpoint only the weights stay, as files that transformers reads. Beside them stays all that is
// not known to be for a resume (meta/formats/thinning.h), and a manifest tells what went.
//
//   1. Asks what speaks against it: an objection leaves the step as it is. The reason is told.
//   2. Makes the step's view. The kept files are exactly its model.* in the type that is asked for, under the names
//      that transformers expects. If the step holds its weights in such files already, these stay.
//   3. Writes them aside (fs/steps/kept_file.h): durable, and compared by digest with what the view shows.
//   4. Puts them in place, in one durable change (meta/steps/thin.h), if the step's files are still those of the view,
//      and what protects steps has not come to this one meanwhile: the change may have waited for saves and seals.
//
// Thread safety: all of it.
#pragma once

#include <atomic>
#include <string>

#include "fs/kernel/notifications.h"
#include "fs/steps/kept_file.h"
#include "fs/steps/removals.h"
#include "fs/steps/step_facts.h"
#include "fs/views/views.h"
#include "meta/formats/thinning.h"
#include "meta/steps/thin.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

struct ThinReport {
  std::string step;     // its path
  uint64_t before = 0;  // exclusive bytes of the step
  uint64_t after = 0;   // at most
  uint64_t freed = 0;   // at least
  meta::formats::ThinnedManifest manifest;
};

class Thinner {
 public:
  // `stop` is set when the mount ends: then what is under way ends with ECANCELED.
  Thinner(meta::Store& store, views::Views& views, StepFactsFinder& step_facts, Removals& removals,
          Notifications& notifications, const std::atomic<bool>& stop)
      : store_(store),
        tree_(store.tree()),
        views_(views),
        step_facts_(step_facts),
        removals_(removals),
        notifications_(notifications),
        stop_(stop) {}

  // `user`: whose lane makes the view. `pause`: between chunks of what is written; the caller's pace. Errors carry
  // words. EBUSY: it is in use, or is protected. EINVAL: its weights cannot be told, or it holds weights only.
  Result<ThinReport> thin(meta::InodeNumber step, const std::string& type, uint32_t user, bool dry_run,
                          const KeepPause& pause);

 private:
  struct Model;
  struct Plan;
  struct Standing;

  Result<Standing> standing_of(meta::InodeNumber step);
  Result<std::shared_ptr<const views::StepView>> view_of(meta::InodeNumber step, uint32_t user);
  Result<Plan> make_plan(meta::InodeNumber step, const std::string& type, uint32_t user);
  static Result<Model> model_of(const views::View& view, const std::string& type, const std::string& name);
  // Returns the standing of a step against which nothing speaks. EBUSY, in words: something does.
  Result<Standing> refuse_by_facts(meta::InodeNumber step);
  Result<> refuse_by_changes(const Plan& plan, const Standing& standing);
  Result<ThinReport> foretell(const Plan& plan);
  Result<> replace_manifest(Plan& plan) const;
  Result<> refuse_other_weights(const Plan& plan) const;
  Result<> keep_files(Plan& plan, ThinReport& report, const KeepPause& pause);
  Result<> put_in_place(const Plan& plan, const Standing& standing);

  meta::Store& store_;
  meta::Tree& tree_;
  views::Views& views_;
  StepFactsFinder& step_facts_;
  Removals& removals_;
  Notifications& notifications_;
  const std::atomic<bool>& stop_;
};

}  // namespace ckptfs::fs
