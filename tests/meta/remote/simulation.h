// Runs the pushes, decisions, readers, rules and collectors of several machines against a store in memory, one request
// at a time, in an order that a seed decides. It is the C++ that runs outside, too: only the store, the disks and the
// clock are simulated. A run has up to three slots, two collectors, two readers and an operator, each a process with a
// fiber of its own. Before each request a process gives its turn on, and whoever passes it on lets the world act first:
// files change, processes die or stop for days, requests fail, the store is restored from an older copy.
//
// The clock is the store's: it goes on by seconds while requests are made, and leaps when all processes sleep.
//
// After each change of the store the invariants of simulation_checks.h are checked. When the changes end, the mounts
// must commit the last attempt, and then the collector must tidy up.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace ckptfs::meta::remote::testing {

enum class Hazard {
  kill,          // a process dies, and starts anew
  stop,          // a process stops for hours
  long_stop,     // a process stops for weeks, between any two requests
  refuse,        // a request is answered 500
  lose_reply,    // a request is carried out, and the connection breaks
  late_list,     // a list lacks what was made of late
  short_list,    // a list ends at the end of a page, and is answered 200
  late_request,  // what a process asked for before its death arrives later
  two_mounts,    // two mounts push as one slot
  restore,       // the store is restored from an older copy, without its uploads
  wrong_read,    // a disk answers with another byte
  rewrite,       // files are opened for writing, and closed
};
inline constexpr std::array kHazards{Hazard::kill,       Hazard::stop,      Hazard::long_stop,  Hazard::refuse,
                                     Hazard::lose_reply, Hazard::late_list, Hazard::short_list, Hazard::late_request,
                                     Hazard::two_mounts, Hazard::restore,   Hazard::wrong_read, Hazard::rewrite};
const char* name_of(Hazard hazard);

struct SimulationPlan {
  uint64_t seed = 1;          // decides all, also which hazards there are
  std::string folder;         // of journals and nameless files
  std::set<Hazard> off = {};  // these are left out
  bool trace = false;         // the last requests are noted
};

struct SimulationResult {
  std::string broken;  // what was not right; empty: nothing
  uint64_t requests = 0;
  uint64_t commits = 0, voids = 0, ended = 0, removed = 0;  // ended: pushes, by marks
  uint64_t deleted = 0;                                     // objects
  uint64_t collections = 0, reads = 0, restores = 0;        // reads: of whole steps
  std::set<Hazard> hazards;                                 // that there were
  std::vector<std::string> trace;
};

// The same plan has the same result.
SimulationResult simulate(const SimulationPlan& plan);

}  // namespace ckptfs::meta::remote::testing
