// Processes as other processes see them: which one a thread belongs to, when it began, whether it has ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>

namespace ckptfs::meta {

// CLOCK_REALTIME nanoseconds at which the process that thread `tid` belongs to began; 0 when it is gone or unknown.
// Remembers answers for a second: a trainer opens many files in a row. Any thread may call it.
uint64_t process_start(pid_t tid);

// A process of this machine, for as long as it runs: a number alone comes back.
struct Process {
  pid_t pid = 0;       // 0: it cannot be seen from here, as one of another pid namespace or one that /proc hides
  uint64_t start = 0;  // clock ticks after the boot
  auto operator<=>(const Process&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
};
// The process that thread `tid` belongs to; likewise remembered for a second. `gone`: there is none any more.
// `forked_from`: the program that it, or what it was forked from, is a fork of without exec; itself: of none. A parent
// that has ended is not found.
struct FoundProcess {
  Process process;
  Process forked_from;
  bool gone = false;
};
FoundProcess find_process(pid_t tid);
// The program that the process works for: as forked_from, also through what Python's multiprocessing has spawned.
// Likewise remembered. Reads the memory of processes, which takes as long as they change their mappings: not to be
// called with a lock held.
Process find_program(const Process& process);
// When it began, after the boot; and for how long it has run.
std::chrono::nanoseconds start_of(const Process& process);
std::chrono::nanoseconds age_of(const Process& process);
// A process that is dead counts as ended even if its parent has not asked for its end yet.
bool has_ended(const Process& process);
// What launched a process as one rank of several, from its environment at exec: torchrun, DeepSpeed's launcher or
// accelerate; Slurm; what speaks PMIx, as Open MPI. What a rank starts has the same. A later launch may have the same,
// too.
// Read from its memory, as above.
struct Launch {
  unsigned launcher = 0;  // 0: nothing has, or it cannot be told, as of a program that overwrote its environment
  uint64_t id = 0;
  uint64_t rank = 0;  // a digest
  bool operator==(const Launch&) const = default;
};
Launch launch_of(const Process& process);
// Where a pid means something: this boot of this machine, and this pid namespace. "BOOT-ID pid:[4026531836]".
std::string process_place();

}  // namespace ckptfs::meta
