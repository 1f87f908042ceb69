// What rotation reads of the steps that it inspects again and again: a step is read once for each of its states.
#include "fs/steps/step_facts.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "io/fault.h"
#include "tests/fs/steps/inspected_steps.h"

namespace ckptfs::fs {
namespace {

constexpr uint64_t kNoise = 256 << 10;

// Bytes that this process has read by system calls so far.
uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

class StepFactsTest : public InspectedSteps {
 protected:
  struct Round {
    uint64_t read = 0;
    std::map<std::string, std::string> states;  // by the name of the step
  };
  // Inspects all as rotation does in each of its rounds.
  Round inspect() {
    const uint64_t before = bytes_read();
    const auto status = facts_->inspect_series(at("/runs"), "eval_loss", true);
    Round round;
    round.read = bytes_read() - before;
    EXPECT_TRUE(status) << status.error().message();
    if (!status) return round;
    for (const StepStatus& step : status.value().steps) round.states[step.facts.tag] = state_of(step);
    return round;
  }
};

TEST_F(StepFactsTest, AStepThatHasNotChangedIsNotReadAgain) {
  make_step(1);
  const std::string cut_short = make_step(2) + "/trainer_state.json";
  ASSERT_TRUE(tree().truncate(at(cut_short), kState - 1));
  const std::string long_header = make_step(3) + "/model.safetensors";
  make_file(long_header, std::string("\0\0\x20\0\0\0\0\0", 8) + std::string(kState, ' '));
  const Round first = inspect();
  EXPECT_GT(first.read, 2 * kState);
  EXPECT_EQ(first.states,
            (std::map<std::string, std::string>{
                {"checkpoint-1", "complete"}, {"checkpoint-2", "incomplete"}, {"checkpoint-3", "unknown"}}));
  const Round second = inspect();
  EXPECT_EQ(second.states, first.states);
  EXPECT_LT(second.read, kNoise);
}

TEST_F(StepFactsTest, AStepThatIsMappedForWritingIsReadOnceAndAgainOnceItIsNot) {
  const std::string path = make_step(1) + "/config.json";
  void* mapping = nullptr;
  {
    const auto fd = tree().open_blob(at(path), O_RDWR);
    ASSERT_TRUE(fd);
    mapping = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.value().get(), 0);
    ASSERT_NE(mapping, MAP_FAILED);
  }
  const Round first = inspect();
  EXPECT_EQ(first.states.at("checkpoint-1"), "unknown");
  const Round second = inspect();
  EXPECT_EQ(second.states.at("checkpoint-1"), "unknown");
  EXPECT_LT(second.read, kNoise);
  ::munmap(mapping, 4096);
  const Round third = inspect();
  EXPECT_EQ(third.states.at("checkpoint-1"), "complete");
  EXPECT_GE(third.read, kState);
  EXPECT_LT(inspect().read, kNoise);
}

TEST_F(StepFactsTest, OfAStepThatCannotBeCompleteNoMetricIsRead) {
  const std::string written = make_step(1) + "/config.json", damaged = make_step(2) + "/config.json";
  const auto open = files_->begin(at(written), true);
  write_errors_->failed(at(damaged), WriteFailure::fdatasync, Error(EIO));
  for (int round = 0; round < 2; ++round) {
    const Round found = inspect();
    EXPECT_EQ(found.states,
              (std::map<std::string, std::string>{{"checkpoint-1", "incomplete"}, {"checkpoint-2", "damaged"}}));
    EXPECT_LT(found.read, kNoise);
  }
  files_->end(open.file, true);
}

TEST_F(StepFactsTest, WhoSavedItAndStillLives) {
  make_step(1);
  const meta::Process own = meta::find_process(::gettid()).process;
  const std::string here = meta::process_place();
  const auto facts = [&](const std::vector<meta::StepWriter>& savers, const std::vector<meta::StepWriter>& writers) {
    EXPECT_TRUE(meta::change_ledger(*store_, at("/runs/checkpoint-1"), [&](meta::LedgerEntry& entry) {
      entry.savers = savers;
      entry.writers = writers;
    }));
    return facts_->inspect_series(at("/runs"), "", false).value().steps.front().facts;
  };
  const auto runs = [&](const std::vector<meta::StepWriter>& savers, const std::vector<meta::StepWriter>& writers) {
    return facts(savers, writers).runs;
  };
  EXPECT_EQ(runs({{here, {own.pid, own.start + 1}}, {"boot pid:[1]", own}, {here, {}}}, {}), std::set<meta::Process>{});
  EXPECT_EQ(runs({}, {{here, own, {}, true}}), std::set<meta::Process>{}) << "it is a command";
  EXPECT_EQ(runs({}, {{here, own}}), std::set{own}) << "whom no round has found to be a saver yet";
  EXPECT_EQ(runs({{here, own}, {here, {own.pid, own.start + 1}}}, {}), std::set{own});
  const auto now = meta::wall_time(meta::now());
  for (const auto& [since, savers] : std::map<meta::WallTime, std::set<meta::Process>>{
           {{}, {own}}, {now - std::chrono::hours(1), {own}}, {now + std::chrono::hours(1), {}}}) {
    const meta::StepWriter writer{here, own, {}, false, since};
    EXPECT_EQ(facts({writer}, {}).savers, savers) << "whoever came when all was there has added a note";
    EXPECT_EQ(facts({}, {writer}).savers, savers);
    EXPECT_EQ(facts({writer}, {}).runs, std::set{own});
  }
}

TEST_F(StepFactsTest, AStepThatCannotBeInspectedIsItsOwners) {
  ASSERT_TRUE(meta::set_control_xattr(*store_, at(make_step(1)), "user.ckptfs.ledger", "damaged"));
  const auto status = facts_->inspect_series(at("/runs"), "", false);
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_TRUE(status.value().steps.front().failed);
  EXPECT_EQ(status.value().steps.front().facts.owner, user().uid);
}

TEST_F(StepFactsTest, AStepWithASuspectFileIsDamagedUntilItIsWrittenAnew) {
  const meta::InodeNumber file = at(make_step(1) + "/config.json");
  {
    const auto blob = tree().open_blob(file, O_RDONLY);
    ASSERT_TRUE(blob);
    io::set_fault("write_back.sync", "1:error:EIO");
    EXPECT_FALSE(tree().sync_file(file, blob.value().get()));
    io::set_fault("write_back.sync", "");
  }
  EXPECT_EQ(inspect().states.at("checkpoint-1"), "damaged");
  ASSERT_TRUE(tree().truncate(file, 0));
  EXPECT_EQ(inspect().states.at("checkpoint-1"), "complete");
}

}  // namespace
}  // namespace ckptfs::fs
