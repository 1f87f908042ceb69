// The ledger of saves: what is known of a step that its files do not tell. Who wrote it, since when it has been as it
// is, and up to when it was whole. Kept with the step in the index.
//
//   - *Who*: the processes that made or removed something in it, or opened a file of it for writing. Each is recorded
//     once. Once all of them have ended, nobody will finish the step (fs/steps/set_aside.h).
//   - *When*: by the clock of the store. What its files say of when they were written may be anything: they were copied
//     with their times, or the wall clock was wrong.
//   - *Of which run*: programs that write the same file, other than a note, are of two runs, unless one launch started
//     them as its ranks. Each file keeps which program wrote it last. So a step shows whose it is: files of two runs
//     make no save, in whatever order they took turns.
//   - *Whole*: until when its files had changed when it was found whole last. What was written since may be a second
//     save that died half-way (fs/steps/step_judgement.h).
//
// Thread safety: all of it.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meta/index/store_clock.h"
#include "meta/store/store.h"
#include "meta/time.h"
#include "meta/tree/process.h"

namespace ckptfs::meta {

inline constexpr std::chrono::seconds kCommandAge{2};  // of processes that are younger when they first write

struct StepWriter {
  std::string place;  // process_place() of the daemon that saw it
  Process process;
  StoreTime began{};  // when the process began; may be negative
  // It had just begun when it first wrote, as mkdir had, or copies, as rsync does. A program that trains has run for
  // seconds before it saves.
  bool is_command = false;
  WallTime since{};      // when it first wrote, by the wall clock; zero: nobody knows
  uint64_t program = 0;  // program_id(); 0: it is not known
  Launch launch{};
  unsigned run = 0;  // writers with different numbers belong to different runs
  bool operator==(const StepWriter&) const = default;
  // A process that cannot be seen from here is none.
  bool is_run() const { return process.pid != 0 && !is_command; }
  bool is_same(const StepWriter& other) const { return place == other.place && process == other.process; }
  bool is_program(uint64_t id) const { return id != 0 && id == program; }
};

struct Moment {
  WallTime wall;
  StoreTime store{};
  bool operator==(const Moment&) const = default;
};

struct SeenStep {
  InodeNumber series = 0;  // where it was then
  WallTime changed;        // what its files and folders said
  StoreTime changed_at{};  // since when they have said so
  WallTime completed;
  StoreTime completed_at{};  // 0: it was not complete yet

  bool operator==(const SeenStep&) const = default;
};

// Where its newest save stands among those that are pushed to a remote (meta/remote/layout.h).
struct OrderOfSave {
  std::string remote;      // its id
  InodeNumber series = 0;  // of the step then
  uint32_t term = 0;
  uint64_t time = 0;
  WallTime as_of;      // a save whose files are all newer than this is another one
  Moment noted;        // when it was given
  uint64_t run = 0;    // a digest of the programs that wrote it; 0: they are not known
  uint64_t count = 1;  // so many saves by these were seen
  bool operator==(const OrderOfSave&) const = default;
};

// What the ranks that saved it have agreed to call the save.
struct AgreedSave {
  std::string id;
  WallTime as_of;
  uint64_t files = 0;  // a digest of those that had been written by then and are no notes, and of who had
  bool operator==(const AgreedSave&) const = default;
};

struct LedgerEntry {
  std::vector<StepWriter> writers;   // since it was found whole
  std::vector<StepWriter> savers;    // those before who were no commands, as far as they are kept
  bool unfinished = false;           // somebody wrote since it was found whole, or set aside
  bool by_run = false;               // not only by commands and by who had saved it
  WallTime again;                    // by_run: since when; the earliest time that the wall clock showed
  WallTime whole;                    // the newest change of its files when it was found whole; zero: it never was
  InodeNumber saved_in = 0;          // the series in which a run saved it, to its end; 0: none did
  uint64_t saves = 0;                // that made it whole
  std::string pushed;                // what the commit is called in which it was pushed last
  bool named = false;                // by the tracker file that tells when it is complete; no run wrote to it since
  std::optional<SeenStep> seen;      // by rotation; none: by nobody
  std::optional<OrderOfSave> order;  // none: it has none yet
  std::optional<AgreedSave> agreed;  // none: nobody has said anything

  bool operator==(const LedgerEntry&) const = default;
  // Did a program that is no command save it in this series, or does one write to what was never whole?
  bool is_saved_in(InodeNumber series) const;
  // Was it whole, and has nobody written since?
  bool is_known_whole() const { return !unfinished && whole != WallTime(); }
  // Was it whole, and has nobody written since but commands and who had saved it?
  bool was_whole() const { return !by_run && whole != WallTime(); }
  // Was it whole, and is it or was it written again, by another run?
  bool is_written_again() const { return by_run && whole != WallTime(); }
  // Does somebody write to it who has not saved it before?
  bool is_being_saved() const { return unfinished && !was_whole(); }
  // One that is of this program; null: none is, or is kept no more.
  const StepWriter* writer_of(uint64_t program) const;
  // If it is written again: was the wall clock set back in between, so that dates tell nothing?
  bool is_set_back() const { return again != WallTime() && again < whole; }
};

// Of a step that the ledger does not know, an empty entry.
Result<LedgerEntry> ledger_of(const Store& store, InodeNumber step);
// `change` gets what is known, and makes of it what is to be known; it must not call the store. Not durable on return.
// ENOENT: the step is gone.
// That a step begins, is complete or was pushed by it becomes an event (meta/tree/step_events.h).
Result<LedgerEntry> change_ledger(Store& store, InodeNumber step, const std::function<void(LedgerEntry&)>& change);

// Of the program that a process belongs to, forks of it included. Never 0.
uint64_t program_id(const std::string& place, const Process& origin);
// `place`: process_place(). `tool`: it is called like a program that copies.
StepWriter writer_now(const std::string& place, const Process& process, const StoreClock& clock, bool tool = false);
// Somebody writes, at that time; none: a process that is gone already. Does the entry say so already?
// `ended`: which processes of the writer's launch have ended. It must not ask the system, as the store's lock is held.
using Ended = std::function<bool(const Process&)>;
void note_writer(
    LedgerEntry& entry, const std::optional<StepWriter>& writer, WallTime now,
    const Ended& ended = [](const Process&) { return true; });
bool is_noted(const LedgerEntry& entry, const std::optional<StepWriter>& writer);
// The program `writer` wrote over, replaced or removed a file that `before` had written: they are of two runs. Whoever
// began nearer to the one than to the other is of its run. Does that tell something new?
bool tells_another_run(const LedgerEntry& entry, uint64_t writer, uint64_t before);
void note_overwritten(LedgerEntry& entry, uint64_t writer, uint64_t before);
// It was found whole in `series`. The newest change of its files is `changed`; of those that each save writes the
// oldest is `oldest` (zero: it has none), which tells a save from a note that somebody added. `programs` wrote them
// last: who is of another run has not saved it.
void note_whole(LedgerEntry& entry, InodeNumber series, WallTime changed, WallTime oldest,
                const std::vector<uint64_t>& programs = {});
// It was pushed, and is called so there.
void note_pushed(LedgerEntry& entry, std::string name);
// Has a process that is no command, and writes or wrote last to `one`, written to the other?
bool share_a_run(const LedgerEntry& one, const LedgerEntry& other);
// True: all of them are commands of this boot, and others may go on, as those of a script that fills a step.
bool are_commands(const std::vector<StepWriter>& writers, const std::string& here);
enum class WritersState {
  ended,
  living,
  unknown,  // one cannot be seen from here, in this boot of the machine
};
// `here`: process_place(). `ended`: has_ended().
WritersState state_of_writers(const std::vector<StepWriter>& writers, const std::string& here,
                              const std::function<bool(const Process&)>& ended);

// What is to be kept of a step that is in `series` now, was last changed at `changed` and completed at `completed`
// (none: it is not complete), where `before` was kept. What is dated less than a minute ago completed when it is dated:
// so steps that complete one soon after the other are in order, whichever is looked at first. `touched`: when any file
// of it was written last, notes among them. If `before` has that as the time of completion, as stores from before 0.1.0
// do, it is the same save.
SeenStep see_step(const std::optional<SeenStep>& before, InodeNumber series, WallTime changed,
                  const std::optional<WallTime>& completed, WallTime touched, const Moment& now);
// Together with the clock. Steps that are gone are left out. Not durable on return.
Result<> note_seen(Store& store, const StoreClock& clock, const std::vector<std::pair<InodeNumber, SeenStep>>& steps);

}  // namespace ckptfs::meta
