#include "tests/meta/remote/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "io/fault.h"

namespace ckptfs::meta::remote::testing {
namespace {

// CKPTFS_SIMULATED=N: so many runs; CKPTFS_SIMULATED_SEED: the first one's seed.
uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

SimulationResult simulate_seed(uint64_t seed) {
  const bool in_memory = std::filesystem::is_directory("/dev/shm");
  const std::string root = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  return simulate({seed, fmt::format("{}/ckptfs-simulation-{}", root, ::getpid())});
}

TEST(Simulation, HoldsItsInvariants) {
  const uint64_t first = from_environment("CKPTFS_SIMULATED_SEED", 1), count = from_environment("CKPTFS_SIMULATED", 20);
  uint64_t requests = 0, commits = 0, voids = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const SimulationResult result = simulate_seed(seed);
    ASSERT_EQ(result.broken, "") << "CKPTFS_SIMULATED_SEED=" << seed << " CKPTFS_SIMULATED=1";
    requests += result.requests;
    commits += result.commits;
    voids += result.voids;
  }
  std::cout << fmt::format("{} runs, {} requests, {} commits, {} voids\n", count, requests, commits, voids);
}

TEST(Simulation, RepeatsItself) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const SimulationResult one = simulate_seed(seed), other = simulate_seed(seed);
    EXPECT_EQ(one.requests, other.requests);
    EXPECT_EQ(one.commits, other.commits);
  }
}

// A check that is left out, and a seed that shows it.
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
  constexpr uint64_t kMost = 3000;
  for (uint64_t seed = GetParam().seed; seed < GetParam().seed + kMost; ++seed) {
    const SimulationResult result = simulate_seed(seed);
    if (result.broken.empty()) continue;
    std::cout << fmt::format("seed {}: {}\n", seed, result.broken);
    return;
  }
  FAIL() << "not found in " << kMost << " runs";
}

INSTANTIATE_TEST_SUITE_P(Simulation, LeftOut,
                         ::testing::Values(LeftOutCheck{"vote_unchecked", 23}, LeftOutCheck{"commit_unequal", 62},
                                           LeftOutCheck{"void_replaces", 3}, LeftOutCheck{"lender_uncommitted", 1},
                                           LeftOutCheck{"found_unvoided", 1771}, LeftOutCheck{"chunk_unchecked", 66}),
                         [](const auto& one) { return std::string(one.param.fault); });

}  // namespace
}  // namespace ckptfs::meta::remote::testing
