// The world of a simulation (simulation.h): what there is in it, and who has the turn.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "tests/meta/remote/fiber.h"
#include "tests/meta/remote/simulation.h"
#include "tests/meta/remote/simulation_checks.h"

namespace ckptfs::meta::remote::testing {

inline constexpr uint64_t kHour = 3600;  // seconds of the store's clock
inline constexpr uint64_t kDay = 24 * kHour;
inline constexpr uint64_t kLatest = 600;                 // by which a list may lag behind
inline constexpr uint64_t kLongestLongStop = 25 * kDay;  // longer than it takes until anything is ended, and deleted

class World;
class Trainer;
class SimulatedMount;

// A process. It has a turn only if it is neither stopped nor asleep.
class Actor {
 public:
  Actor(World& world, std::string name) : world_(world), name_(std::move(name)) {}
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;
  virtual ~Actor() = default;

  // What it does from its start until must_end().
  virtual void live() = 0;
  bool must_end() const;
  const std::string& name() const { return name_; }

  bool killed = false;
  bool is_cut_off = false;  // nothing that it has asked for arrives any more
  bool settled = false;     // nothing is left to do for it
  uint64_t sleeps_until = 0;
  uint64_t began = 0;           // its last call of what it does
  bool met_hazard = false;      // since then: a request failed, or a list was short
  bool met_short_list = false;  // since then
  std::unique_ptr<Fiber> fiber;

 protected:
  World& world_;

 private:
  const std::string name_;
};

class World {
 public:
  explicit World(const SimulationPlan& plan);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();
  SimulationResult run();

  uint64_t roll(uint64_t below) { return dice_() % below; }
  std::string roll_id();
  std::mt19937_64& dice() { return dice_; }
  // `one_in`: at the usual rate of this hazard.
  bool happens(Hazard hazard, uint64_t one_in);
  bool late_lists_happen() const;
  void pass_turn(Actor& actor);
  void sleep(Actor& actor, uint64_t seconds);
  void pass_time(uint64_t seconds) { now_ += seconds; }

  enum class Phase { busy, calm, last };
  bool is_calm() const { return phase_ != Phase::busy; }  // no hazard happens any more
  bool is_last() const { return phase_ == Phase::last; }  // only one collector is left
  bool is_over() const { return over_; }
  uint64_t now() const { return now_; }
  uint32_t slots() const { return slots_; }
  // In some runs little is saved, mounts sleep for days, and processes stop just before they make something, or die
  // just after they have sent a file.
  bool is_patient() const { return patient_; }
  const std::string& folder() const { return plan_.folder; }
  SimulationResult& result() { return result_; }
  Checks& checks() { return checks_; }
  void fail(const std::string& what);
  template <class Words>
  void note(const Actor* actor, const Words& words) {
    if (plan_.trace) add_to_trace(actor, words());
  }

  // Of the store.
  const Objects& objects() const { return objects_; }
  const StoredObject* find(const std::string& key) const;
  Result<> put(const Actor* actor, const std::string& key, std::string text, io::PutMode mode);
  void remove(const std::string& key);
  // A request of a process that died. No text: to remove it.
  void arrive_later(const std::string& key, std::optional<std::string> text, io::PutMode mode = io::PutMode::make);
  // Uploads that were begun, by id.
  struct StoredUpload {
    std::string text;
    uint64_t changed = 0;
  };
  std::map<std::string, StoredUpload>& uploads() { return uploads_; }

 private:
  struct LateRequest {
    std::string key;
    std::optional<std::string> text;
    io::PutMode mode = io::PutMode::make;
  };
  void set_up();
  void live(Actor& actor);
  Actor& choose();
  void act();
  void act_in_calm();
  void arrive();
  void restore();
  void become_calm();
  void add_to_trace(const Actor* actor, const std::string& words);
  Actor& any_actor() { return *actors_[roll(actors_.size())]; }

  const SimulationPlan plan_;
  std::mt19937_64 dice_;
  SimulationResult result_;
  std::array<uint64_t, kHazards.size()> rates_{};
  uint32_t slots_ = 1;
  uint64_t turns_ = 0, now_ = kDay, calm_after_ = 0, calm_at_ = 0, last_at_ = 0;
  Phase phase_ = Phase::busy;
  bool over_ = false;
  bool two_mounts_ = false, patient_ = false;
  Objects objects_;
  std::map<std::string, StoredUpload> uploads_;
  std::optional<Objects> copy_;
  std::vector<LateRequest> late_;
  Checks checks_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::vector<SimulatedMount*> mounts_;
  std::vector<Actor*> collectors_;
  std::unique_ptr<Trainer> trainer_;
  Actor* next_ = nullptr;
};

}  // namespace ckptfs::meta::remote::testing
