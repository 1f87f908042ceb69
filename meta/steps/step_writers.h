// Who wrote to a step: the processes that made a file in it or opened one for writing. It is recorded with the step,
// once for each process, so that it outlives the daemon. Once all of them have ended, nobody will finish the step
// (fs/steps/set_aside.h).
//
// Thread safety: all of it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "meta/store/store.h"
#include "meta/tree/process.h"

namespace ckptfs::meta {

struct StepWriter {
  std::string place;  // process_place() of the daemon that saw it
  Process process;
  // It had just begun when it first wrote, as mkdir or cp had. A program that trains has run for seconds before it
  // saves.
  bool is_command = false;
  bool operator==(const StepWriter&) const = default;
  bool is_same(const StepWriter& other) const { return place == other.place && process == other.process; }
};
// `place`: process_place().
StepWriter writer_now(const std::string& place, const Process& process);

// None: nobody has recorded it.
Result<std::optional<std::vector<StepWriter>>> step_writers(const Store& store, InodeNumber step);
// True: all of them are commands of this boot, and others may go on, as those of a script that fills a step.
bool are_commands(const std::vector<StepWriter>& writers, const std::string& here);
// Adds `writer`, or none, to the record, which is made. Not durable on return.
Result<> note_step_writer(Store& store, InodeNumber step, const std::optional<StepWriter>& writer);
Result<> forget_step_writers(Store& store, InodeNumber step);

enum class WritersState {
  ended,
  living,
  unknown,  // one cannot be seen from here, in this boot of the machine
};
// `here`: process_place(). `ended`: has_ended().
WritersState state_of_writers(const std::vector<StepWriter>& writers, const std::string& here,
                              const std::function<bool(const Process&)>& ended);

}  // namespace ckptfs::meta
