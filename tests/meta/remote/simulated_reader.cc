#include "tests/meta/remote/simulated_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace ckptfs::meta::remote::testing {
namespace {

const io::RequestLimits kNoLimits;

}  // namespace

void SimulatedReader::live() {
  settled = true;
  while (!must_end()) {
    world_.sleep(*this, world_.roll(2 * kDay));
    if (must_end() || world_.is_calm()) continue;
    const auto read = read_one();
    if (read) ++world_.result().reads;
  }
}

Result<> SimulatedReader::read_one() {
  met_hazard = false;
  auto steps = list_steps(store_, kNoLimits);
  if (!steps && !met_hazard && !must_end() && !world_.late_lists_happen()) {
    world_.fail("a reader cannot list the steps: " + steps.error().message());
  }
  TRY(steps);
  std::erase_if(steps.value(), [](const CommittedStep& step) { return step.gone; });
  if (steps.value().empty()) return Error(ENOENT, "there is no step");
  const CommittedStep& step = steps.value()[world_.roll(steps.value().size())];
  auto read = read_step(step);
  if (!read && !must_end()) judge(step, read.error());
  return read;
}

Result<> SimulatedReader::read_step(const CommittedStep& step) {
  TRY_ASSIGN(const RemoteStep opened, RemoteStep::open(store_, step, world_.folder(), kNoLimits, 1));
  for (const UnionEntry& file : opened.whole().entries) {
    if (opened.entry(file).kind != Entry::Kind::file) continue;
    if (world_.roll(2) == 0) world_.sleep(*this, world_.roll(kDay / 2));
    TRY(read_file(opened, file));
  }
  return success();
}

Result<> SimulatedReader::read_file(const RemoteStep& step, const UnionEntry& file) {
  constexpr int kTries = 5;
  std::string content(step.entry(file).size, '\0');
  for (int tries = 1;; ++tries) {
    const auto read = step.read(file, 0, std::as_writable_bytes(std::span(content)), kNoLimits);
    if (read) break;
    if (tries == kTries || read.error().errno_value() != EAGAIN || must_end()) return read;
  }
  world_.checks().check_file(step, file, content);
  return success();
}

void SimulatedReader::judge(const CommittedStep& step, const Error& error) {
  const auto gone = world_.checks().gone_since(step.decision);
  if (gone && *gone + kDay <= world_.now()) return;
  if (error.errno_value() == EAGAIN || error.errno_value() == ECONNRESET) return;  // so the store answered
  world_.fail(fmt::format("a reader cannot read {}: {}", step.name(), error.message()));
}

}  // namespace ckptfs::meta::remote::testing
