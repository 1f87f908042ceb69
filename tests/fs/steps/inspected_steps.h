// A store with steps of a Trainer in /runs, and what inspects them.
#pragma once

#include <memory>
#include <string>

#include "fs/open/file_sync.h"
#include "fs/steps/step_facts.h"
#include "tests/meta/scratch_store.h"

namespace ckptfs::fs {

class InspectedSteps : public meta::ScratchStore {
 protected:
  static constexpr size_t kState = 2 << 20;  // bytes of each trainer_state.json

  void SetUp() override {
    ScratchStore::SetUp();
    if (IsSkipped()) return;
    make_folder("/runs");
    OpenFileTable::Environment environment;
    environment.open_blob = [this](InodeNumber inode) { return tree().open_blob(inode, O_RDONLY); };
    environment.open_backing = [](int) -> Result<int> { return 0; };
    environment.close_backing = [](int) {};
    environment.reap = [](InodeNumber) {};
    environment.about_to_change = [](InodeNumber) {};
    files_ = std::make_unique<OpenFileTable>(std::move(environment));
    write_errors_ = std::make_unique<WriteErrors>(tree(), counters_);
    sync_ = std::make_unique<FileSync>(tree(), *files_, *write_errors_);
    facts_ = std::make_unique<StepFactsFinder>(*store_, *files_, *write_errors_, *sync_, readings_, saves_, pushes_,
                                               std::chrono::seconds(0));
    ASSERT_TRUE(facts_->start());
  }
  void TearDown() override {
    facts_.reset();
    sync_.reset();
    write_errors_.reset();
    files_.reset();
    ScratchStore::TearDown();
  }

  // A Trainer's step, of which a long file has to be read.
  std::string make_step(unsigned number) {
    std::string step = "/runs/checkpoint-" + std::to_string(number);
    make_folder(step);
    make_file(step + "/config.json", "{}");
    make_file(step + "/model.msgpack", "weights");
    std::string state = R"({"global_step": 1, "log_history": [{"step": 1, "eval_loss": 0.5}])";
    state.append(kState - state.size() - 1, ' ');
    make_file(step + "/trainer_state.json", state + "}");
    return step;
  }

  Counters counters_;
  Turns readings_{2};
  SaveHistory saves_;
  PushStates pushes_;
  std::unique_ptr<OpenFileTable> files_;
  std::unique_ptr<WriteErrors> write_errors_;
  std::unique_ptr<FileSync> sync_;
  std::unique_ptr<StepFactsFinder> facts_;
};

}  // namespace ckptfs::fs
