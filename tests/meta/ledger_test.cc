#include "meta/steps/ledger.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>

#include "io/fault.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using namespace std::chrono_literals;
using LedgerTest = ScratchStore;

constexpr const char* kHere = "boot-1 pid:[1]";
constexpr InodeNumber kSeries = 7;
constexpr WallTime kLater(99s);

WritersState state_of(const std::vector<StepWriter>& writers) {
  return state_of_writers(writers, kHere, [](const Process& process) { return process.pid == 1; });
}

TEST(StepWriters, AllMustHaveEnded) {
  const StepWriter dead{kHere, {1, 10}}, alive{kHere, {2, 10}}, unseen{kHere, {}};
  const StepWriter elsewhere{"boot-1 pid:[2]", {1, 10}}, before{"boot-0 pid:[1]", {2, 10}};
  EXPECT_EQ(state_of({}), WritersState::ended);
  EXPECT_EQ(state_of({dead, before}), WritersState::ended);
  EXPECT_EQ(state_of({dead, alive}), WritersState::living);
  EXPECT_EQ(state_of({dead, unseen}), WritersState::unknown);
  EXPECT_EQ(state_of({dead, elsewhere}), WritersState::unknown);
  EXPECT_EQ(state_of({unseen, alive}), WritersState::living);
}

TEST(StepWriters, CommandsMayBeFollowedByOthers) {
  const StepWriter training{kHere, {1, 10}}, command{kHere, {2, 10}, {}, true};
  const StepWriter before{"boot-0 pid:[1]", {2, 10}, {}, true};
  EXPECT_FALSE(are_commands({}, kHere));
  EXPECT_TRUE(are_commands({command, command}, kHere));
  EXPECT_FALSE(are_commands({command, training}, kHere));
  EXPECT_FALSE(are_commands({command, before}, kHere));
}

TEST(StepWriters, AProcessEndsOnce) {
  const FoundProcess own = find_process(::gettid());
  EXPECT_EQ(own.process.pid, ::getpid());
  EXPECT_FALSE(has_ended(own.process));
  EXPECT_TRUE(has_ended({own.process.pid, own.process.start + 1}));  // the number came back
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const Process process = find_process(child).process;
  EXPECT_FALSE(has_ended(process));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(process)) << "dead, and nobody has asked for it";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(process));
}

TEST(StepWriters, AForkBelongsToItsProgram) {
  const FoundProcess own = find_process(::gettid());
  std::array<int, 2> pipes{};
  ASSERT_EQ(::pipe2(pipes.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const pid_t grandchild = ::fork();
    if (grandchild != 0) [[maybe_unused]]
      const ssize_t written = ::write(pipes[1], &grandchild, sizeof grandchild);
    ::pause();
    ::_exit(0);
  }
  pid_t grandchild = 0;
  ASSERT_EQ(::read(pipes[0], &grandchild, sizeof grandchild), ssize_t{sizeof grandchild});
  EXPECT_EQ(find_process(child).forked_from, own.forked_from);
  EXPECT_EQ(find_process(grandchild).forked_from, own.forked_from);
  EXPECT_NE(find_process(grandchild).process, own.process);
  for (const pid_t one : {child, grandchild}) EXPECT_EQ(::kill(one, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  for (const int end : pipes) ::close(end);
}

TEST(Ledger, ARunThatWritesAfterItWasWholeWritesItAgain) {
  const StepWriter run{kHere, {1, 10}}, other{kHere, {1, 11}}, command{kHere, {2, 10}, {}, true};
  LedgerEntry entry;
  EXPECT_FALSE(is_noted(entry, run));
  note_writer(entry, run, kLater);
  EXPECT_TRUE(is_noted(entry, run));
  EXPECT_TRUE(entry.unfinished);
  EXPECT_FALSE(entry.is_written_again()) << "it was never whole";
  note_whole(entry, kSeries, WallTime(10s), {});
  EXPECT_FALSE(entry.unfinished);
  EXPECT_FALSE(is_noted(entry, run));
  note_writer(entry, command, kLater);
  EXPECT_TRUE(entry.unfinished);
  EXPECT_FALSE(entry.is_written_again());
  EXPECT_TRUE(is_noted(entry, command));
  note_writer(entry, run, kLater);
  EXPECT_TRUE(is_noted(entry, run));
  EXPECT_FALSE(entry.is_written_again()) << "who saved it had more to write";
  EXPECT_FALSE(is_noted(entry, other));
  note_writer(entry, other, kLater);
  EXPECT_TRUE(entry.is_written_again());
  EXPECT_TRUE(std::ranges::equal(entry.writers, std::array{command, run, other},
                                 [](const auto& a, const auto& b) { return a.is_same(b) && a.since == kLater; }));
  EXPECT_TRUE(entry.savers.size() == 1 && entry.savers.front().is_same(run));
  note_whole(entry, kSeries, WallTime(20s), {});
  note_writer(entry, std::nullopt, kLater);
  EXPECT_TRUE(entry.is_written_again()) << "nobody can tell who it was";
}

TEST(Ledger, TheClockWasSetBack) {
  const StepWriter run{kHere, {1, 10}}, other{kHere, {1, 11}}, command{kHere, {2, 10}, {}, true};
  LedgerEntry entry;
  note_writer(entry, run, WallTime(3s));
  EXPECT_FALSE(entry.is_set_back());
  note_whole(entry, kSeries, WallTime(10s), {});
  for (const StepWriter& one : {run, command}) note_writer(entry, one, WallTime(5s));
  EXPECT_FALSE(entry.is_set_back()) << "they make no second save";
  note_writer(entry, other, WallTime(5s));
  EXPECT_TRUE(entry.is_set_back());
  note_writer(entry, std::nullopt, kLater);
  EXPECT_TRUE(entry.is_set_back()) << "what was written until then is dated before the step was whole";
  note_whole(entry, kSeries, WallTime(6s), {});
  EXPECT_FALSE(entry.is_set_back());
}

TEST(Ledger, WhoWroteBoth) {
  const StepWriter run{kHere, {1, 10}}, other{kHere, {1, 11}}, command{kHere, {2, 10}, {}, true}, unseen{kHere, {}};
  const auto by = [](std::vector<StepWriter> writers) { return LedgerEntry{.writers = std::move(writers)}; };
  EXPECT_TRUE(share_a_run(by({command, run}), by({run, other})));
  EXPECT_FALSE(share_a_run(by({run}), by({other})));
  EXPECT_FALSE(share_a_run(by({command, unseen}), by({command, unseen})));
  LedgerEntry whole = by({command, run});
  note_whole(whole, kSeries, WallTime(10s), {});
  EXPECT_TRUE(share_a_run(by({run}), whole));
  EXPECT_FALSE(share_a_run(whole, by({run}))) << "nobody writes to it";
}

TEST(Ledger, WhatARunSavedIsNotWhatItAddedANoteTo) {
  const StepWriter run{kHere, {1, 10}}, command{kHere, {2, 10}, {}, true};
  LedgerEntry saved, copied;
  note_writer(saved, run, kLater);
  EXPECT_TRUE(saved.is_saved_in(kSeries)) << "while it is saved";
  note_whole(saved, kSeries, WallTime(10s), WallTime(8s));
  EXPECT_TRUE(saved.is_saved_in(kSeries));
  EXPECT_FALSE(saved.is_saved_in(kSeries + 1)) << "it was moved to another series";
  note_writer(copied, command, kLater);
  note_whole(copied, kSeries, WallTime(10s), WallTime(8s));
  EXPECT_FALSE(copied.is_saved_in(kSeries));
  note_writer(copied, run, kLater);
  EXPECT_FALSE(copied.is_saved_in(kSeries)) << "it may be a note";
  note_whole(copied, kSeries, WallTime(20s), WallTime(8s));
  EXPECT_FALSE(copied.is_saved_in(kSeries)) << "it was a note";
  note_writer(copied, run, kLater);
  note_writer(copied, StepWriter{kHere, {3, 10}}, kLater);
  note_whole(copied, kSeries, WallTime(30s), WallTime(25s));
  EXPECT_TRUE(copied.is_saved_in(kSeries)) << "all of it was saved anew";
}

TEST_F(LedgerTest, IsKeptWithTheStep) {
  make_folder("/steps/checkpoint-1");
  const InodeNumber step = at("/steps/checkpoint-1");
  EXPECT_EQ(ledger_of(*store_, step).value(), LedgerEntry());
  LedgerEntry entry;
  for (const bool command : {false, true})
    note_writer(entry, StepWriter{process_place(), {7, 8}, -3s, command}, kLater);
  note_writer(entry, StepWriter{process_place(), {9, 8}, 3s, true}, kLater);
  note_whole(entry, kSeries, WallTime(-5s), {});
  for (const bool command : {false, true})
    note_writer(entry, StepWriter{process_place(), {10, 8}, 4s, command}, kLater);
  StepWriter other{process_place(), {11, 8}, 5s};
  other.program = 5;
  other.launch = {1, 6, 2};
  other.run = 7;
  entry.writers.push_back(other);
  note_writer(entry, std::nullopt, WallTime(-6s));
  entry.seen = SeenStep{7, WallTime(1s), 2s, WallTime(3s), 4s};
  entry.order = OrderOfSave{"0123456789abcdef", 6, 3, 123456789012345, WallTime(8s), {WallTime(9s), 10s}, 13, 14};
  entry.agreed = AgreedSave{"save \"1\"", WallTime(11s), 12};
  ASSERT_TRUE(change_ledger(*store_, step, [&entry](LedgerEntry& known) { known = entry; }));
  reopen();
  EXPECT_EQ(ledger_of(*store_, step).value(), entry);
  EXPECT_EQ(change_ledger(*store_, step + 1000, [](LedgerEntry&) {}).error().errno_value(), ENOENT);
}

TEST_F(LedgerTest, EachFactIsKept) {
  make_folder("/steps/checkpoint-1");
  const InodeNumber step = at("/steps/checkpoint-1");
  for (const WallTime again : {WallTime(), WallTime(7s)}) {
    for (const bool unfinished : {false, true}) {
      for (const bool by_run : {false, true}) {
        const LedgerEntry entry{
            .unfinished = unfinished, .by_run = by_run, .again = by_run ? again : WallTime(), .whole = WallTime(5s)};
        ASSERT_TRUE(change_ledger(*store_, step, [&entry](LedgerEntry& known) { known = entry; }));
        EXPECT_EQ(ledger_of(*store_, step).value(), entry);
      }
    }
  }
}

TEST_F(LedgerTest, AnyNameThatItWasPushedAsIsKept) {
  make_folder("/steps/checkpoint-1");
  const InodeNumber step = at("/steps/checkpoint-1");
  for (const std::string name : {" a \"b\" \\c ", "run 1\n", "~2"}) {
    ASSERT_TRUE(change_ledger(*store_, step, [&name](LedgerEntry& entry) { note_pushed(entry, name); }));
    LedgerEntry entry;
    note_pushed(entry, name);
    EXPECT_EQ(ledger_of(*store_, step).value().pushed, entry.pushed);
  }
}

// As they were written before "again" told that it was a run.
TEST_F(LedgerTest, OldRecordsAreRead) {
  make_folder("/steps/checkpoint-1");
  const InodeNumber step = at("/steps/checkpoint-1");
  const auto read = [&](const std::string& text) {
    Tree::Change change = tree().begin();
    change.batch.put_xattr(step, "user.ckptfs.ledger", text);
    EXPECT_TRUE(tree().commit(std::move(change)));
    return ledger_of(*store_, step).value();
  };
  EXPECT_EQ(read("unfinished run\n"), (LedgerEntry{.unfinished = true, .by_run = true}));
  EXPECT_EQ(read("unfinished commands\n"), (LedgerEntry{.unfinished = true}));
  EXPECT_EQ(read("again 7000000000\nwhole 5000000000\n"),
            (LedgerEntry{.by_run = true, .again = WallTime(7s), .whole = WallTime(5s)}));
  const StepWriter writer{"boot pid:[1]", {7, 8}, StoreTime(9)};
  EXPECT_EQ(read("run boot pid:[1] 7 8 9\n"), LedgerEntry{.writers = {writer}});
}

TEST_F(LedgerTest, WhoHasJustBegunIsACommand) {
  const StoreClock clock = StoreClock::load(store_->index()).value();
  const Process own = find_process(::getpid()).process;
  EXPECT_FALSE(writer_now(kHere, {own.pid, 1}, clock).is_command);  // it began with the machine
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_TRUE(writer_now(kHere, find_process(child).process, clock).is_command);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

// The first one is program 1. They begin at these times, in seconds.
std::vector<StepWriter> writers_that_began(std::initializer_list<int> times, uint64_t launch = 0) {
  std::vector<StepWriter> writers;
  for (const int time : times) {
    const uint64_t number = writers.size() + 1;
    writers.push_back({kHere, {static_cast<pid_t>(number), 10}, std::chrono::seconds(time)});
    writers.back().program = number;
    if (launch != 0) writers.back().launch = {1, launch, number};
  }
  return writers;
}

using Runs = std::vector<unsigned>;

Runs runs_of(const LedgerEntry& entry) {
  Runs runs;
  for (const StepWriter& one : entry.writers) runs.push_back(one.run);
  return runs;
}

void note_all(LedgerEntry& entry, std::span<const StepWriter> writers) {
  for (const StepWriter& one : writers) note_writer(entry, one, kLater, [](const Process&) { return true; });
}

TEST(Runs, ThoseThatWriteTheSameFileAreOfTwo) {
  const auto all = writers_that_began({10, 11, 50, 51, 12, 52, 200});
  LedgerEntry entry;
  note_all(entry, std::span(all).first(4));
  EXPECT_EQ(runs_of(entry), (Runs{0, 0, 0, 0})) << "ranks of one run, as far as anybody knows";
  EXPECT_TRUE(tells_another_run(entry, 4, 1));
  note_overwritten(entry, 4, 1);
  EXPECT_EQ(runs_of(entry), (Runs{0, 0, 1, 1})) << "who began with it is of its run";
  EXPECT_FALSE(tells_another_run(entry, 3, 2));
  note_overwritten(entry, 3, 2);
  EXPECT_EQ(runs_of(entry), (Runs{0, 0, 1, 1})) << "that is known";
  note_all(entry, std::span(all).subspan(4));
  EXPECT_EQ(runs_of(entry), (Runs{0, 0, 1, 1, 0, 1, 2})) << "they began with these, the last one with none";
  note_overwritten(entry, 6, 4);
  EXPECT_EQ(runs_of(entry), (Runs{0, 0, 1, 1, 0, 3, 2})) << "there are more";
  note_whole(entry, kSeries, WallTime(10s), {});
  note_all(entry, std::span(all).subspan(2, 1));
  EXPECT_EQ(runs_of(entry), Runs{1}) << "what is known stays known";
}

TEST(Runs, OnlyWhoseFilesAreThereHasSavedIt) {
  const auto all = writers_that_began({10, 50});
  LedgerEntry entry;
  note_all(entry, all);
  note_overwritten(entry, 2, 1);
  note_whole(entry, kSeries, WallTime(10s), {}, {0, 2});
  ASSERT_EQ(entry.savers.size(), 1U);
  EXPECT_TRUE(entry.savers[0].is_same(all[1]));
  note_all(entry, std::span(all).first(1));
  EXPECT_TRUE(entry.is_written_again());
}

TEST(Runs, WhoTellsNothing) {
  auto all = writers_that_began({10, 10, 9, 10});
  all[2].is_command = true;
  all[3].program = all[0].program;
  LedgerEntry entry;
  note_all(entry, all);
  const LedgerEntry before = entry;
  for (const uint64_t program : {0, 1, 3, 77}) note_overwritten(entry, 1, program);
  note_overwritten(entry, 3, 1);
  EXPECT_EQ(entry, before) << "itself, a command, and who is not known";
  note_overwritten(entry, 1, 2);
  EXPECT_EQ(runs_of(entry), (Runs{1, 0, 0, 1})) << "they began at once; a fork is of its program";
}

TEST(Runs, LaunchesTell) {
  const auto first = writers_that_began({10, 11}, 7), second = writers_that_began({12, 13, 14, 500, 900}, 8);
  LedgerEntry entry;
  note_all(entry, first);
  const auto note = [&entry](StepWriter one, bool ended) {
    one.process.pid += 100;
    one.program += 100;
    note_writer(entry, one, kLater, [ended](const Process&) { return ended; });
  };
  for (const size_t at : {0, 1, 2}) note(second[at], true);
  EXPECT_EQ(runs_of(entry), (Runs{0, 0, 1, 1, 1})) << "two launches are two runs";
  note_overwritten(entry, 102, 101);
  EXPECT_EQ(runs_of(entry), (Runs{0, 0, 1, 1, 1})) << "ranks of one launch may write the same files";
  note(second[3], false);
  EXPECT_EQ(runs_of(entry).back(), 1U) << "a rank that lives has started it";
  note(second[4], true);
  EXPECT_EQ(runs_of(entry).back(), 2U) << "the launch has the port of one that has ended";
  StepWriter spawned = second[0];  // in whose environment there is more
  spawned.program = 200;
  spawned.process.pid = 200;
  spawned.launch = {2, 9, 9};
  note_writer(entry, spawned, kLater);
  EXPECT_EQ(runs_of(entry).back(), 1U) << "what two launchers say cannot be compared";
  spawned.launch = second[0].launch;
  spawned.program = 201;
  spawned.process.pid = 201;
  note_writer(entry, spawned, kLater, [](const Process&) { return false; });
  EXPECT_TRUE(tells_another_run(entry, 201, 101)) << "in one shell two trainings have the same rank";
}

TEST(Ledger, TooManyWritersAreUnseen) {
  LedgerEntry entry;
  for (uint64_t number = 0; number < 1100; ++number)
    note_writer(entry, StepWriter{kHere, {1, number}, {}, false}, kLater);
  EXPECT_LT(entry.writers.size(), 1030U);
  EXPECT_EQ(state_of(entry.writers), WritersState::unknown);
}

constexpr WallTime kMonday{1'000'000s};

// A week later, so that no date is recent.
Moment at_time(StoreTime time) { return {kMonday + 7 * 24h + time, time}; }

TEST(SeeStepTest, WhatHasChangedIsNew) {
  const SeenStep first = see_step({}, kSeries, kMonday, {}, kMonday, at_time(10s));
  EXPECT_EQ(first, (SeenStep{kSeries, kMonday, 10s, {}, 0s}));
  const SeenStep complete = see_step(first, kSeries, kMonday + 1s, kMonday, kMonday, at_time(20s));
  EXPECT_EQ(complete, (SeenStep{kSeries, kMonday + 1s, 20s, kMonday, 20s}));
  EXPECT_EQ(see_step(complete, kSeries, kMonday + 1s, kMonday, kMonday + 1s, at_time(30s)), complete)
      << "nothing has changed";
  const SeenStep touched = see_step(complete, kSeries, kMonday + 2s, {}, kMonday, at_time(40s));
  EXPECT_EQ(touched, (SeenStep{kSeries, kMonday + 2s, 40s, kMonday, 20s})) << "it is not complete for now";
  const SeenStep rewritten = see_step(touched, kSeries, kMonday + 2s, kMonday - 24h, kMonday - 24h, at_time(50s));
  EXPECT_EQ(rewritten.completed_at, 50s) << "though it is dated before";
  const SeenStep moved = see_step(complete, kSeries + 1, kMonday + 1s, kMonday, kMonday, at_time(60s));
  EXPECT_EQ(moved, (SeenStep{kSeries + 1, kMonday + 1s, 60s, kMonday, 60s})) << "it is new in its series";
}

TEST(SeeStepTest, ANoteOfAnOlderStoreMakesNoStepNewer) {
  const SeenStep older = see_step({}, kSeries, kMonday, kMonday, kMonday, at_time(10s));
  const SeenStep now = see_step(older, kSeries, kMonday, kMonday - 1h, kMonday, at_time(20s));
  EXPECT_EQ(now, (SeenStep{kSeries, kMonday, 10s, kMonday - 1h, 10s})) << "the note was taken for a part of the save";
  EXPECT_EQ(see_step(now, kSeries, kMonday, kMonday - 1h, kMonday, at_time(30s)), now);
  EXPECT_EQ(see_step(now, kSeries, kMonday + 1s, kMonday + 1s, kMonday + 1s, at_time(40s)).completed_at, 40s);
}

TEST(SeeStepTest, WhatIsDatedAMomentAgoCompletedThen) {
  const auto completed_at = [](std::chrono::seconds age, StoreTime now) {
    return see_step({}, kSeries, kMonday, kMonday - age, kMonday - age, {kMonday, now}).completed_at;
  };
  EXPECT_EQ(completed_at(20s, 100s), 80s);
  EXPECT_EQ(completed_at(0s, 100s), 100s);
  EXPECT_EQ(completed_at(20s, 10s), 1ns) << "before the store was made";
  EXPECT_EQ(completed_at(60s, 100s), 100s) << "it was copied, perhaps, with its times";
  EXPECT_EQ(completed_at(-1s, 100s), 100s) << "it is of the future";
}

TEST_F(LedgerTest, WhatWasSeenIsKept) {
  const InodeNumber step = make_folder("/steps/global_step1");
  ASSERT_FALSE(ledger_of(*store_, step).value().seen);
  const StoreClock clock = StoreClock::load(store_->index()).value();
  const SeenStep seen = see_step({}, at("/steps"), kMonday, kMonday, kMonday, at_time(clock.now()));
  ASSERT_TRUE(note_seen(*store_, clock, {{step, seen}, {step + 1000, seen}}));
  reopen();
  EXPECT_EQ(ledger_of(*store_, step).value().seen, seen);
  EXPECT_GT(StoreClock::load(store_->index()).value().now(), seen.changed_at);
}

#ifdef CKPTFS_FAULT_POINTS
TEST_F(LedgerTest, TheClockOnlyCountsUp) {
  const auto boot = [this](const char* id, const char* seconds) {
    io::set_fault("boot_id", id);
    io::set_fault("since_boot", seconds);
    return StoreClock::load(store_->index()).value();
  };
  const StoreClock first = boot("first", "1000");
  const StoreTime begin = first.now();
  io::set_fault("since_boot", "1010");
  EXPECT_EQ(first.now(), begin + 10s);
  io::set_fault("since_boot", "900");
  EXPECT_EQ(first.now(), begin) << "whatever it is told";
  io::set_fault("since_boot", "1010");
  ASSERT_TRUE(first.note(store_->index()));
  EXPECT_EQ(boot("first", "1500").now(), begin + 500s) << "it was not mounted for a while";
  const StoreClock second = boot("second", "30");
  EXPECT_EQ(second.now(), begin + 40s) << "the machine was off for a while, and what was not noted is lost";
  ASSERT_TRUE(note_seen(*store_, second, {{at("/steps"), {}}}));
  EXPECT_EQ(boot("second", "40").now(), begin + 50s);
  io::set_fault("boot_id", "");
  io::set_fault("since_boot", "");
}
#endif

}  // namespace
}  // namespace ckptfs::meta
