// To run the simulation on many cores, build it optimised and with fault points, and give each process its seeds:
//
//   cmake -S . -B build/simulated -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCKPTFS_FAULT_POINTS=ON
//   ninja -C build/simulated tests_meta
//   CKPTFS_SIMULATED=100000 CKPTFS_SIMULATED_SEED=1 build/simulated/tests/tests_meta --gtest_filter='Simulation.Holds*'
//
// A run that breaks prints its seed, the hazards that it takes, and its last requests.
#include "tests/meta/remote/simulation.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "io/fault.h"

namespace ckptfs::meta::remote::testing {
namespace {

// CKPTFS_SIMULATED=N: so many runs; CKPTFS_SIMULATED_SEED: the first one's seed.
uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

SimulationPlan plan_of(uint64_t seed, std::set<Hazard> off = {}, bool trace = false) {
  const bool in_memory = std::filesystem::is_directory("/dev/shm");
  const std::string root = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  return {seed, fmt::format("{}/ckptfs-simulation-{}", root, ::getpid()), std::move(off), trace};
}

// The first of these seeds whose run breaks.
std::optional<uint64_t> find_broken(uint64_t first, uint64_t count, const std::set<Hazard>& off) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!simulate(plan_of(seed, off)).broken.empty()) return seed;
  }
  return std::nullopt;
}

// Leaves out one hazard after the other, as long as this seed or one of the next ones still breaks: without a hazard
// another run follows from a seed.
std::string text_of_broken(uint64_t seed) {
  constexpr uint64_t kTries = 300;
  const SimulationResult whole = simulate(plan_of(seed));
  std::set<Hazard> off;
  uint64_t found = seed;
  for (const Hazard hazard : kHazards) {
    std::set<Hazard> fewer = off;
    fewer.insert(hazard);
    const auto broken = find_broken(seed, kTries, fewer);
    if (!broken) continue;
    off = std::move(fewer);
    found = *broken;
  }
  const SimulationResult least = simulate(plan_of(found, off, true));
  std::string text = fmt::format("{}\nCKPTFS_SIMULATED_SEED={} CKPTFS_SIMULATED=1\nIt takes:", whole.broken, seed);
  for (const Hazard hazard : least.hazards) text += fmt::format(" {}", name_of(hazard));
  text += fmt::format("\nWith them alone, seed {}: {}\n", found, least.broken);
  for (const std::string& line : least.trace) text += line + "\n";
  return text;
}

TEST(Simulation, HoldsItsInvariants) {
  const uint64_t first = from_environment("CKPTFS_SIMULATED_SEED", 1), count = from_environment("CKPTFS_SIMULATED", 20);
  SimulationResult all;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const SimulationResult result = simulate(plan_of(seed));
    ASSERT_EQ(result.broken, "") << text_of_broken(seed);
    all.requests += result.requests;
    all.commits += result.commits;
    all.voids += result.voids;
    all.ended += result.ended;
    all.removed += result.removed;
    all.deleted += result.deleted;
    all.collections += result.collections;
    all.reads += result.reads;
    all.restores += result.restores;
  }
  std::cout << fmt::format(
      "{} runs: {} requests, {} commits, {} voids, {} pushes ended, {} steps removed, {} objects deleted, {} "
      "collections, {} "
      "steps read, {} restores\n",
      count, all.requests, all.commits, all.voids, all.ended, all.removed, all.deleted, all.collections, all.reads,
      all.restores);
  const std::vector<uint64_t> happened{all.commits, all.voids,       all.ended, all.removed,
                                       all.deleted, all.collections, all.reads, all.restores};
  EXPECT_THAT(happened, ::testing::Each(::testing::Gt(0))) << "something never happens";
}

TEST(Simulation, RepeatsItself) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(simulate(plan_of(seed, {}, true)).trace, simulate(plan_of(seed, {}, true)).trace);
  }
}

// A check that is left out, and a seed that shows it soon.
struct LeftOutCheck {
  const char* fault;
  uint64_t seed;
};

// Each check that is left out must be found.
class LeftOut : public ::testing::TestWithParam<LeftOutCheck> {
 protected:
  void SetUp() override { io::set_fault(GetParam().fault, "1"); }
  void TearDown() override { io::set_fault(GetParam().fault, ""); }
};

TEST_P(LeftOut, IsFound) {
  constexpr uint64_t kMost = 500;
  const auto seed = find_broken(GetParam().seed, kMost, {});
  ASSERT_TRUE(seed) << "not found in " << kMost << " runs";
  std::cout << fmt::format("seed {}: {}\n", *seed, simulate(plan_of(*seed)).broken);
}

LeftOutCheck left_out(const char* fault, uint64_t seed) { return {fault, seed}; }

INSTANTIATE_TEST_SUITE_P(Simulation, LeftOut,
                         ::testing::Values(left_out("save_unchecked", 1), left_out("life_unchecked", 1),
                                           left_out("commit_replaces", 1), left_out("chunk_unchecked", 30),
                                           left_out("journal_trusted", 30), left_out("undecided_collected", 50),
                                           left_out("mark_deleted", 64), left_out("newest_removed", 10),
                                           left_out("pins_forgotten", 332), left_out("grace_forgotten", 107)),
                         [](const auto& one) { return std::string(one.param.fault); });

}  // namespace
}  // namespace ckptfs::meta::remote::testing
