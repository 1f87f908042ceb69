// Pushes the steps of one series to its remote, one at a time, on a thread of its own with idle I/O priority.
//
// A round looks at all steps of the series. A step that is quiet, and not what the remote has, is pushed, complete or
// not (meta/remote/push.h). Then what is there of it is decided (meta/remote/decide.h), and again in later rounds while
// other slots are waited for. First come steps of which another slot has a part, then the newest.
//
// What fails is tried again, for ever, after a pause that grows to a minute; the step's state says what stands in the
// way. A step that nobody can push as it is (a file is damaged, or of a kind that no remote holds) is *refused*: it is
// looked at again all the same. What a crash interrupts is begun anew, without what has arrived
// (meta/remote/push_journal.h). A step that is removed meanwhile is forgotten, and so is what was sent of it. A step
// that `ckptfs fetch` made counts as committed while it is what came (fs/remote/fetched_step.h). Unless somebody asks
// for it by hand, a step is left out that the remote's rules would not keep, or that was removed there as it is here. A
// part that the collector has ended, since other slots' parts did not come or it is incomplete, is pushed again only
// when something has happened.
//
// Thread safety: all of it; start() and stop() from one thread. Lock: mutex_ (a leaf).
#pragma once

#include <chrono>
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fs/remote/daily_collector.h"
#include "fs/remote/local_step.h"
#include "fs/remote/remote_settings.h"
#include "fs/remote/wanted_steps.h"
#include "fs/steps/push_states.h"
#include "io/background_thread.h"
#include "io/mutex.h"
#include "io/objects/object_store.h"
#include "meta/remote/decide.h"
#include "meta/remote/push.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/slot_owner.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

struct RemoteReport {
  RemoteSettings settings;
  std::string id;          // of the remote; empty: it was not reached yet
  bool manual = false;     // the rule `push` says so
  std::string trouble;     // what stands in the way of all steps; empty: nothing
  uint64_t pushed = 0;     // parts, since the mount
  uint64_t committed = 0;  // steps, likewise: what this mount has seen
  uint64_t failures = 0;
  uint64_t sent = 0;    // bytes of files
  uint64_t copied = 0;  // bytes that the remote had already
  uint64_t puts = 0, gets = 0, lists = 0, retries = 0;
  std::string pushing;                         // the tag of the step that is on its way now; empty: none is
  uint64_t bytes_per_second = 0;               // of it, lately
  std::chrono::seconds stalled{};              // for so long nothing has succeeded, though it was tried
  std::optional<std::chrono::seconds> oldest;  // the age of the oldest unpushed step; none: there is none
  std::optional<CollectionReport> collection;  // of slot 0
};

class SeriesPusher {
 public:
  // `wake_others`: called when a step was committed, or its state has changed otherwise.
  SeriesPusher(const LocalStep::Environment& environment, PushStates& states, meta::InodeNumber series,
               RemoteSettings settings, std::unique_ptr<io::ObjectStore> remote, std::function<void()> wake_others);
  ~SeriesPusher() { stop(); }

  void start();
  void ask_to_stop() { stopping_ = true; }
  void stop();
  void wake() { thread_.wake(); }
  // Pushes this step next, whatever the rule says, and without waiting for it to be quiet. `again`: also what is there
  // as it is here.
  void push_now(meta::InodeNumber step, const std::string& tag, bool again);
  RemoteReport report() const;
  const RemoteSettings& settings() const { return settings_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Candidate {
    StepStatus status;
    bool asked = false;    // by hand
    bool again = false;    // and also if it is there
    bool awaited = false;  // another slot has a part of it
  };
  // Parts of a tag, and pushes that have begun, as listed.
  struct PartsOfOthers {
    std::chrono::system_clock::time_point newest;  // by the server's clock
    uint64_t count = 0;
    bool has_lead = false;  // slot 0 has a part
    // Less: the other one has something more. The collector may take some away.
    auto operator<=>(const PartsOfOthers&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
  };
  // What is known of a step that was pushed, while it is what it was.
  struct Pushed {
    io::Digest fingerprint{};
    std::unique_ptr<LocalStep> image;
    bool again = false;  // somebody has asked for it, though it is there
    bool is_put = false;
    meta::remote::PushedPart part;
    meta::remote::KnownParts known;
    meta::remote::DecisionMemory memory;
    PartsOfOthers others;  // when it was decided about last
  };
  // What the thread remembers of a step.
  struct Remembered {
    std::optional<Pushed> pushed;                 // not committed yet
    std::optional<PartsOfOthers> others_at_rest;  // when it was seen as committed, removed or ended
    std::optional<io::Digest> ended;              // its fingerprint when its part was ended
    std::string ended_as;                         // the agreed id then
    Clock::time_point not_before;                 // what failed is tried again then
    int failures_in_a_row = 0;

    void forget_failures() {
      not_before = {};
      failures_in_a_row = 0;
    }
  };

  void run();
  std::chrono::seconds longest_rest() const;
  Result<bool> round();
  Result<> reach();
  Result<std::vector<Candidate>> candidates();
  Result<> note_whole(const SeriesStatus& series);
  bool is_in_doubt(const StepStatus& status, bool beside_whole);
  // `beside_whole`: another step of its owner is whole.
  bool note_blocked(const StepStatus& status, bool beside_whole);
  Result<> claim();
  Result<> list_others();
  PartsOfOthers parts_of_others(const std::string& tag) const;
  bool is_changed_elsewhere(const Candidate& candidate);
  bool was_ended(const Candidate& candidate);
  bool is_due(const Candidate& candidate);
  bool is_resting(meta::InodeNumber step);
  Result<bool> is_better_there(const Candidate& candidate);
  Result<bool> is_as_fetched(const Candidate& candidate, const LocalStep& image);
  Result<> note_pushed(meta::InodeNumber step, const std::string& name);
  Result<> note_pushed_by_hand(meta::InodeNumber step, const LocalStep& image,
                               const meta::remote::CommittedStep& there);
  Result<bool> is_removed_there(const Candidate& candidate, const LocalStep& image);
  Result<bool> is_not_kept(const Candidate& candidate);
  void note_there(const Candidate& candidate, const std::string& name);
  void settle(const Candidate& candidate, PushState state);
  Result<> push(const Candidate& candidate);
  Result<> send(meta::InodeNumber step, Pushed& pushed);
  Result<> go_on(meta::InodeNumber step, Pushed& pushed);
  Result<> decide(meta::InodeNumber step, Pushed& pushed);
  Result<bool> is_awaited(meta::InodeNumber step, const LocalStep& image);
  Result<bool> is_left_alone(meta::InodeNumber step) const;
  Result<> forget_missing();
  PushState state_of(const Candidate& candidate) const;
  uint64_t bytes_per_second() const;
  void note_progress(meta::InodeNumber step, const meta::remote::PushProgress& progress);
  void note_trouble(const std::string& text);
  void failed(const Candidate& candidate, const Error& error);
  meta::remote::PushSettings push_settings(meta::InodeNumber step);
  io::RequestLimits limits() const;
  std::string journal_of(const std::string& tag) const;
  Result<bool> is_manual() const;

  const LocalStep::Environment env_;
  PushStates& states_;
  const meta::InodeNumber series_;
  const RemoteSettings settings_;
  const std::unique_ptr<io::ObjectStore> remote_;
  const std::function<void()> wake_others_;
  const std::string folder_;  // of the journals, and of nameless files
  meta::remote::Slot slot_;
  meta::remote::UploadLimit limit_;
  std::atomic<bool> stopping_{false};
  // Of the thread alone, down to manual_.
  std::optional<meta::remote::RemoteFacts> facts_;
  meta::remote::SlotOwner owner_;  // this mount
  WantedSteps wanted_;
  std::map<meta::InodeNumber, Remembered> steps_;
  std::map<std::string, PartsOfOthers> others_;  // by tag, as listed last
  std::string nothing_;  // why there is nothing to push, in words; empty: there is, or may soon be
  bool manual_ = false;

  mutable io::Mutex mutex_;
  struct Asked {
    bool fresh = true;   // since the last round
    bool again = false;  // also if it is there
  };
  std::map<meta::InodeNumber, Asked> asked_ GUARDED_BY(mutex_);  // by hand
  RemoteReport report_ GUARDED_BY(mutex_);
  mutable Clock::time_point rate_from_ GUARDED_BY(mutex_);  // when somebody asked for the rate last
  mutable uint64_t rate_bytes_ GUARDED_BY(mutex_) = 0, rate_ GUARDED_BY(mutex_) = 0;
  io::BackgroundThread thread_;
};

}  // namespace ckptfs::fs
