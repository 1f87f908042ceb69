#include "meta/steps/step_writers.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

constexpr const char* kHere = "boot-1 pid:[1]";

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
  const StepWriter training{kHere, {1, 10}}, command{kHere, {2, 10}, true}, before{"boot-0 pid:[1]", {2, 10}, true};
  EXPECT_FALSE(are_commands({}, kHere));
  EXPECT_TRUE(are_commands({command, command}, kHere));
  EXPECT_FALSE(are_commands({command, training}, kHere));
  EXPECT_FALSE(are_commands({command, before}, kHere));
  const Process own = find_process(::getpid()).process;
  EXPECT_FALSE(writer_now(kHere, {own.pid, 1}).is_command);  // it began with the machine
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_TRUE(writer_now(kHere, find_process(child).process).is_command);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
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

class StepWritersTest : public ScratchStore {};

TEST_F(StepWritersTest, AreKeptWithTheStep) {
  make_folder("/steps/checkpoint-1");
  const InodeNumber step = at("/steps/checkpoint-1");
  EXPECT_FALSE(step_writers(*store_, step).value());
  const StepWriter writer{process_place(), {7, 8}, true};
  ASSERT_TRUE(note_step_writer(*store_, step, std::nullopt));
  EXPECT_EQ(step_writers(*store_, step).value(), std::vector<StepWriter>());
  ASSERT_TRUE(note_step_writer(*store_, step, writer));
  ASSERT_TRUE(note_step_writer(*store_, step, StepWriter{writer.place, writer.process}));  // older by now
  EXPECT_EQ(step_writers(*store_, step).value(), std::vector<StepWriter>{writer});
  ASSERT_TRUE(forget_step_writers(*store_, step));
  EXPECT_FALSE(step_writers(*store_, step).value());
}

TEST_F(StepWritersTest, TooManyAreUnseen) {
  make_folder("/steps/checkpoint-1");
  const InodeNumber step = at("/steps/checkpoint-1");
  for (int number = 0; number < 1100; ++number) {
    ASSERT_TRUE(note_step_writer(*store_, step, StepWriter{kHere, {1, static_cast<uint64_t>(number)}, false}));
  }
  EXPECT_LT(step_writers(*store_, step).value()->size(), 1030U);
  EXPECT_EQ(state_of(*step_writers(*store_, step).value()), WritersState::unknown);
}

}  // namespace
}  // namespace ckptfs::meta
