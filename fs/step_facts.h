// What rotation and `ckptfs ls` need to know of the steps of a series: whether each is complete, when it was, whether
// somebody uses it, what it scored.
//
// Reading a step's headers takes a while; what was found is kept until a file of the step changes.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "meta/formats/completeness.h"
#include "meta/retention.h"
#include "meta/steps.h"

namespace ckptfs::fs {

class Filesystem;

struct StepLook {
  meta::InodeNumber inode = 0;
  meta::StepRecord record;
  meta::StepFacts facts;
  std::string reason;            // why it is not complete
  meta::WallTime changed;        // when anything in it was, last
  std::chrono::seconds quiet{};  // since then
};

// "complete", "sealed", "being removed", "incomplete", "unknown"
const char* state_of(const StepLook& step);

// A child of a series that is no step, and why.
struct NoStep {
  std::string name;
  std::string reason;
};

struct SeriesLook {
  std::vector<StepLook> steps;
  std::vector<NoStep> others;
  meta::WallTime changed;  // when anything in it was, last
  bool written = false;    // somebody has a file of a step open for writing
};

class StepFactsFinder {
 public:
  explicit StepFactsFinder(Filesystem& fs) : fs_(fs) {}

  Result<StepLook> look_at_step(meta::InodeNumber step);
  // `metric`: what keep_best asks for; empty: nothing.
  Result<SeriesLook> look_at(meta::InodeNumber series, const std::string& metric);
  // Does somebody have a file of the step open, or had within twice the quiet time?
  Result<bool> is_in_use(meta::InodeNumber step) const;
  // The inode is gone.
  void forget(meta::InodeNumber inode);

 private:
  using Used = std::unordered_set<meta::InodeNumber>;
  struct Known {
    std::string fingerprint;
    meta::formats::CompletenessJudgement judgement;
    timespec completed{};
  };

  Result<StepLook> look_at_step(meta::InodeNumber step, const std::string& tag, const Used& used);
  Used used() const;
  Result<bool> holds_any(meta::InodeNumber step, const Used& used) const;
  bool is_written(meta::InodeNumber series) const;
  Result<Known> judge(meta::InodeNumber step, const std::string& tag, StepLook& look);
  Result<timespec> newest_change(meta::InodeNumber folder) const;
  Result<bool> is_mapped_for_writing(meta::InodeNumber step) const;
  Result<std::optional<double>> metric_of(const StepLook& look, const std::string& name) const;
  std::string latest_of(meta::InodeNumber series) const;

  Filesystem& fs_;
  std::mutex mutex_;
  std::unordered_map<meta::InodeNumber, Known> known_;  // guarded by mutex_; by step
};

}  // namespace ckptfs::fs
