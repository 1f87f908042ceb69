#include "tests/meta/remote/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "meta/remote/slot_parts.h"
#include "tests/meta/remote/simulated_collector.h"
#include "tests/meta/remote/simulated_mount.h"
#include "tests/meta/remote/simulated_reader.h"
#include "tests/meta/remote/simulated_trainer.h"
#include "tests/meta/remote/simulation_world.h"

namespace ckptfs::meta::remote::testing {
namespace {

constexpr uint64_t kLongestStop = kDay / 2;
constexpr uint64_t kMostCalm = 8000;        // turns, until the last attempt must be committed
constexpr uint64_t kTidyAfter = 16 * kDay;  // a week until a push is ended, and a day until it is deleted
constexpr size_t kTrace = 300;

}  // namespace

const char* name_of(Hazard hazard) {
  switch (hazard) {
    case Hazard::kill:
      return "kill";
    case Hazard::stop:
      return "stop";
    case Hazard::long_stop:
      return "long_stop";
    case Hazard::refuse:
      return "refuse";
    case Hazard::lose_reply:
      return "lose_reply";
    case Hazard::late_list:
      return "late_list";
    case Hazard::short_list:
      return "short_list";
    case Hazard::late_request:
      return "late_request";
    case Hazard::two_mounts:
      return "two_mounts";
    case Hazard::restore:
      return "restore";
    case Hazard::wrong_read:
      return "wrong_read";
    case Hazard::rewrite:
      return "rewrite";
  }
  return "?";
}

bool Actor::must_end() const { return killed || world_.is_over(); }

World::World(const SimulationPlan& plan) : plan_(plan), dice_(plan.seed), checks_(*this) { set_up(); }
World::~World() = default;

// Of a hazard there is nothing in one run of four, and much in another one.
void World::set_up() {
  constexpr std::array<uint64_t, 4> kRates{0, 1, 1, 4};
  for (const Hazard hazard : kHazards) {
    const uint64_t rate = kRates[roll(kRates.size())];
    if (plan_.off.contains(hazard)) continue;
    rates_[static_cast<size_t>(hazard)] = rate;
    if (rate > 0) result_.hazards.insert(hazard);
  }
  slots_ = static_cast<uint32_t>(1 + roll(3));
  two_mounts_ = happens(Hazard::two_mounts, 12);
  if (!two_mounts_) result_.hazards.erase(Hazard::two_mounts);
  patient_ = roll(3) == 0;
  calm_after_ = 200 + roll(1200);
  const auto add_mount = [&](uint32_t slot) {
    const std::string name = fmt::format("mount-{}", mounts_.size());
    const auto term = static_cast<uint32_t>(1 + mounts_.size());
    auto mount = std::make_unique<SimulatedMount>(*this, name, Slot{slot, slots_, "host of " + name, name}, term);
    mounts_.push_back(mount.get());
    actors_.push_back(std::move(mount));
  };
  for (uint32_t slot = 0; slot < slots_; ++slot) add_mount(slot);
  if (two_mounts_) add_mount(0);
  for (const char* const name : {"collector-0", "collector-1"}) {
    collectors_.push_back(actors_.emplace_back(std::make_unique<SimulatedCollector>(*this, name)).get());
  }
  for (const char* const name : {"reader-0", "reader-1"}) {
    actors_.push_back(std::make_unique<SimulatedReader>(*this, name));
  }
  actors_.push_back(std::make_unique<Operator>(*this, "operator"));
  trainer_ = std::make_unique<Trainer>(*this, mounts_);
}

std::string World::roll_id() { return fmt::format("{:016x}", dice_()); }

bool World::happens(Hazard hazard, uint64_t one_in) {
  const uint64_t rate = rates_[static_cast<size_t>(hazard)];
  return rate > 0 && !is_calm() && roll(one_in) < rate;
}

bool World::late_lists_happen() const { return rates_[static_cast<size_t>(Hazard::late_list)] > 0; }

void World::live(Actor& actor) {
  while (!over_) {
    actor.killed = actor.is_cut_off = false;
    actor.live();
  }
}

SimulationResult World::run() {
  for (const auto& actor : actors_) {
    actor->fiber = std::make_unique<Fiber>([this, one = actor.get()] { live(*one); });
  }
  next_ = actors_.front().get();
  while (!over_) next_->fiber->resume();
  // Each one ends at its next request.
  for (const auto& actor : actors_) {
    while (!actor->fiber->has_ended()) actor->fiber->resume();
  }
  result_.requests = turns_;
  return std::move(result_);
}

// Who is awake; else who wakes first, and then.
Actor& World::choose() {
  if (is_last()) {
    now_ = std::max(now_, collectors_.front()->sleeps_until);
    return *collectors_.front();
  }
  std::array<Actor*, 16> able{};
  size_t count = 0;
  Actor* first = actors_.front().get();
  for (const auto& actor : actors_) {
    if (actor->sleeps_until <= now_) able[count++] = actor.get();
    if (actor->sleeps_until < first->sleeps_until) first = actor.get();
  }
  if (count > 0) return *able[roll(count)];
  now_ = first->sleeps_until;
  return *first;
}

void World::pass_turn(Actor& actor) {
  constexpr uint64_t kLongestRequest = 30;  // seconds
  if (over_) return;
  ++turns_;
  now_ += 1 + roll(kLongestRequest);
  act();
  if (over_) return;
  next_ = &choose();
  if (next_ != &actor) actor.fiber->yield();
}

void World::sleep(Actor& actor, uint64_t seconds) {
  actor.sleeps_until = std::max(actor.sleeps_until, now_ + seconds);
  pass_turn(actor);
}

void World::act() {
  if (phase_ == Phase::busy && turns_ >= calm_after_) become_calm();
  if (is_calm()) return act_in_calm();
  if (roll(patient_ ? 60 : 12) == 0) trainer_->save_on();
  if (happens(Hazard::rewrite, 60)) trainer_->touch();
  if (happens(Hazard::kill, 80)) any_actor().killed = true;
  if (happens(Hazard::stop, 60)) any_actor().sleeps_until = now_ + roll(kLongestStop);
  if (happens(Hazard::long_stop, 150)) any_actor().sleeps_until = now_ + roll(kLongestLongStop);
  if (!late_.empty() && roll(30) == 0) arrive();
  if (happens(Hazard::restore, 200)) copy_ = objects_;
  if (copy_ && happens(Hazard::restore, 400)) restore();
}

void World::act_in_calm() {
  constexpr uint64_t kTwoMountsCalm = 200;
  if (is_last()) {
    if (now_ < last_at_ + kTidyAfter) return;
    checks_.check_tidiness();
    over_ = true;
  } else if (two_mounts_) {
    over_ = turns_ > calm_at_ + kTwoMountsCalm;
  } else if (std::ranges::all_of(actors_, [](const auto& actor) { return actor->settled; })) {
    for (const SimulatedMount* const mount : mounts_) {
      for (const auto& [tag, step] : mount->disk) checks_.check_last_attempt(mount->slot(), tag, step.files);
    }
    phase_ = Phase::last;
    last_at_ = now_;
  } else if (turns_ > calm_at_ + kMostCalm) {
    fail("the last attempt is not committed");
  }
}

void World::become_calm() {
  trainer_->finish();
  while (!late_.empty()) arrive();
  for (const auto& actor : actors_) actor->sleeps_until = now_ + roll(kHour);
  for (SimulatedMount* const mount : mounts_) mount->settled = false;
  note(nullptr, [] { return "all is calm"; });
  phase_ = Phase::calm;
  calm_at_ = turns_;
}

void World::arrive_later(const std::string& key, std::optional<std::string> text, io::PutMode mode) {
  late_.push_back({key, std::move(text), mode});
}

void World::arrive() {
  const LateRequest late = std::move(late_.back());
  late_.pop_back();
  note(nullptr, [&] { return fmt::format("what a dead process asked for arrives: {}", late.key); });
  if (!late.text) return remove(late.key);
  std::ignore = put(nullptr, late.key, *late.text, late.mode);
}

// Nothing is on its way, and no process runs, when somebody restores a store.
void World::restore() {
  note(nullptr, [] { return "the store is restored"; });
  objects_ = *copy_;
  uploads_.clear();
  ++result_.restores;
  late_.clear();
  checks_.after_restore();
  for (const auto& actor : actors_) {
    actor->killed = actor->is_cut_off = true;
    actor->sleeps_until = now_ + roll(kDay / 2);
  }
}

const StoredObject* World::find(const std::string& key) const {
  const auto found = objects_.find(key);
  return found == objects_.end() ? nullptr : &found->second;
}

Result<> World::put(const Actor* actor, const std::string& key, std::string text, io::PutMode mode) {
  const auto found = objects_.find(key);
  if (found != objects_.end() && mode == io::PutMode::make) return Error(EEXIST, key + " is there already");
  const bool may_change = key == kCollectedKey || (parse_part_key(key) && text.size() <= kMostEndedBytes);
  if (found != objects_.end() && found->second.text != text && !may_change) fail(key + " changes");
  objects_[key] = {std::move(text), now_};
  checks_.after_put(actor, key);
  return success();
}

void World::remove(const std::string& key) {
  if (objects_.erase(key) > 0) checks_.after_remove(key);
}

void World::fail(const std::string& what) {
  if (result_.broken.empty()) result_.broken = fmt::format("day {}, turn {}: {}", now_ / kDay, turns_, what);
  note(nullptr, [&] { return what; });
  over_ = true;
}

void World::add_to_trace(const Actor* actor, const std::string& words) {
  const std::string who = actor == nullptr ? "" : actor->name() + ": ";
  result_.trace.push_back(fmt::format("{:7.3f} {}{}", static_cast<double>(now_) / kDay, who, words));
  if (result_.trace.size() > 2 * kTrace) result_.trace.erase(result_.trace.begin(), result_.trace.begin() + kTrace);
}

SimulationResult simulate(const SimulationPlan& plan) {
  std::filesystem::create_directories(plan.folder);
  SimulationResult result = World(plan).run();
  std::filesystem::remove_all(plan.folder);
  return result;
}

}  // namespace ckptfs::meta::remote::testing
