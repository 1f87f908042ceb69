// What speaks for and against setting a step aside whose writers have ended: is something of it open, does something
// protect it, is it incomplete? When it is asked, and what follows: fs/steps/set_aside.h.
//
// Thread safety: all of it.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "fs/base/turns.h"
#include "fs/open/open_files.h"
#include "fs/steps/push_states.h"
#include "fs/steps/step_facts.h"
#include "meta/formats/completeness.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

class Abandonment {
 public:
  static constexpr const char* kRule = "set_aside";
  // Does somebody read this folder?
  using IsFolderOpen = std::function<bool(meta::InodeNumber)>;

  Abandonment(meta::Store& store, const OpenFileTable& files, IsFolderOpen is_folder_open,
              const StepFactsFinder& step_facts, const PushStates& pushes, Turns& readings)
      : store_(store),
        tree_(store.tree()),
        files_(files),
        is_folder_open_(std::move(is_folder_open)),
        step_facts_(step_facts),
        pushes_(pushes),
        readings_(readings) {}

  // What was begun ends with ECANCELED.
  void stop() { stopping_ = true; }

  // Is a file of the step open, or mapped for writing, or a folder of it? A copy of a whole step has no file open
  // between two.
  Result<bool> is_open(meta::InodeNumber step) const;
  // Had it a file open within twice the quiet time?
  Result<bool> is_in_use(meta::InodeNumber step) const { return step_facts_.is_in_use(step); }
  // Why it must keep its name, in words. Empty: nothing protects it.
  Result<std::string> find_protection(meta::InodeNumber series, meta::InodeNumber step, const std::string& tag) const;
  Result<meta::formats::CompletenessJudgement> judge(meta::InodeNumber series, meta::InodeNumber step) const;

 private:
  Result<meta::formats::SiblingFiles> siblings_of(meta::InodeNumber series, meta::InodeNumber step) const;

  meta::Store& store_;
  meta::Tree& tree_;
  const OpenFileTable& files_;
  const IsFolderOpen is_folder_open_;
  const StepFactsFinder& step_facts_;
  const PushStates& pushes_;
  Turns& readings_;
  std::atomic<bool> stopping_{false};
};

}  // namespace ckptfs::fs
