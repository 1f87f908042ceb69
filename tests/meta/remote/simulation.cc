#include "tests/meta/remote/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <set>
#include <thread>
#include <vector>

#include "meta/remote/election.h"
#include "meta/remote/part.h"
#include "meta/remote/push.h"

namespace ckptfs::meta::remote::testing {
namespace {

constexpr uint64_t kNever = UINT64_MAX;
constexpr uint64_t kDay = 50;           // turns. The collector waits so long between its looks
constexpr uint64_t kLatest = 20;        // turns by which a list may lag behind
constexpr uint64_t kLongestStop = 400;  // turns
constexpr uint64_t kMostCalm = 6000;    // turns, until the last attempt must be committed

class World;

// What a mount has of a step, and has had.
struct DiskStep {
  std::map<std::string, std::string> files;
  std::string attempt;
  uint64_t version = 0;  // grows whenever something is opened for writing, comes or goes
  bool quiet = true;
  bool outlived = false;  // a process that is younger than its writers has written in the series

  struct State {
    uint64_t since = 0, until = kNever;  // turns
    uint64_t attempt = 0;                // 0: half written
    io::Digest content{};
  };
  std::vector<State> states;
};

std::vector<Entry> entries_of(const DiskStep& step) {
  std::vector<Entry> entries(1);
  entries[0].kind = Entry::Kind::folder;
  entries[0].mode = 0755;
  for (const auto& [path, content] : step.files) {
    Entry& entry = entries.emplace_back();
    entry.path = path;
    entry.mode = 0644;
    entry.size = content.size();
  }
  return entries;
}

io::Digest digest_text(const std::string& text) { return io::digest_of(std::as_bytes(std::span(text))); }

io::Digest content_of_step(const DiskStep& step) {
  ContentDigest content;
  for (const Entry& entry : entries_of(step)) {
    std::vector<io::Digest> digests;
    if (entry.size > 0) digests.push_back(digest_text(step.files.at(entry.path)));
    content.add(entry, digests);
  }
  return content.finish();
}

// A mount: a process that pushes what it has. It lives on a thread of its own.
struct Actor {
  uint32_t id = 0;
  bool collector = false;
  Slot slot;
  std::map<std::string, DiskStep> disk;

  std::thread thread;
  std::binary_semaphore turn{0};
  bool killed = false, ended = false, settled = false;
  uint64_t stopped_until = 0;
};

struct StoredObject {
  std::string text;
  uint64_t made = 0;
};

class World {
 public:
  explicit World(const SimulationPlan& plan) : plan_(plan), dice_(plan.seed) { set_up(); }
  SimulationResult run();

  // Of actors.
  uint64_t roll(uint64_t below) { return dice_() % below; }
  bool happens(uint64_t one_in) { return !calm_ && roll(one_in) == 0; }
  void pass_turn(Actor& actor);
  bool is_over() const { return over_; }
  bool is_calm() const { return calm_; }
  uint64_t now() const { return now_; }
  const std::string& folder() const { return plan_.folder; }
  // `began`: when the call of push_part() did.
  PushName name_push(const std::string& tag, uint32_t slot, uint64_t began) {
    PushName name{tag, slot, fmt::format("{:016x}", dice_())};
    began_.emplace(name, began);
    return name;
  }

  // Of the store.
  Result<> put(const std::string& key, const io::ObjectContent& content, io::PutMode mode);
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer) const;
  void put_later(const std::string& key, std::string text) { late_puts_.emplace_back(key, std::move(text)); }
  const StoredObject* find(const std::string& key) const;
  void remove(const std::string& key);
  const std::map<std::string, StoredObject>& objects() const { return objects_; }
  const PartHeader& header_of(const PushName& push);
  const Commit& commit_of(const DecisionName& decision);
  std::set<std::string> packs_that_stay();
  std::vector<CommittedStep> commits(bool gone);

 private:
  void set_up();
  void add_actor(uint32_t slot, bool collector);
  void live(Actor& actor);
  void end(Actor& actor);
  Actor& choose();
  void act();
  void save_on();
  bool is_saving() const { return !to_begin_.empty() || !to_write_.empty(); }
  void write_on(Actor& actor);
  void note_state(DiskStep& step, uint64_t attempt);
  void become_calm();
  void fail(const std::string& what);
  void check_put(const std::string& key);
  void check_part(const PushName& push);
  void check_commit(const std::string& key);
  void check_moment(const std::vector<PartHeader>& parts, const std::string& key);
  void check_chunks(const Part& part, const std::string& key);
  void check_standing();
  void check_end();
  bool is_settled() const;
  Actor& any_actor() { return *actors_[roll(actors_.size())]; }

  const SimulationPlan plan_;
  std::mt19937_64 dice_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::binary_semaphore all_ended_{0};
  std::map<std::string, StoredObject> objects_;
  std::vector<std::pair<std::string, std::string>> late_puts_;
  std::map<PushName, PartHeader> headers_;
  std::map<std::string, Commit> commits_;
  std::map<PushName, uint64_t> began_;
  uint64_t now_ = 1, calm_at_ = 0;
  bool calm_ = false, over_ = false;
  bool two_mounts_ = false, named_attempts_ = false;
  uint32_t slots_ = 1;
  std::vector<std::string> tags_;
  SimulationResult result_;

  // The save that is going on: first each mount's new process begins, then each writes.
  std::string saved_tag_;
  uint64_t attempt_ = 0;
  std::vector<Actor*> to_begin_, to_write_;
  bool half_written_ = false;
};

// The store, as one mount sees it.
class SimulatedStore : public io::ObjectStore {
 public:
  SimulatedStore(World& world, Actor& actor) : world_(world), actor_(actor) {}

  Result<> put(const std::string& key, const io::ObjectContent& content, io::PutMode mode,
               const io::RequestLimits& /*limits*/) override {
    TRY(begin());
    if (actor_.killed && world_.roll(2) == 0) {  // it dies, and its request arrives later
      std::string text(content.size, '\0');
      TRY(content.read(0, std::as_writable_bytes(std::span(text))));
      if (!world_.is_calm()) world_.put_later(key, std::move(text));
      return Error(ECANCELED);
    }
    if (actor_.killed) return Error(ECANCELED);
    auto done = world_.put(key, content, mode);
    TRY(lose_reply());
    return done;
  }

  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const io::RequestLimits& /*limits*/) override {
    TRY(begin());
    if (actor_.killed) return Error(ECANCELED);
    return world_.get(key, offset, buffer);
  }

  // A late list does not have what was made of late.
  Result<io::ObjectPage> list(const std::string& prefix, const std::string& token,
                              const io::RequestLimits& /*limits*/) override {
    TRY(begin());
    if (actor_.killed) return Error(ECANCELED);
    const uint64_t lag = world_.happens(20) ? world_.roll(kLatest) : 0;
    io::ObjectPage page;
    const auto& objects = world_.objects();
    for (auto at = objects.lower_bound(prefix); at != objects.end() && at->first.starts_with(prefix); ++at) {
      if (at->first <= token || at->second.made + lag > world_.now()) continue;
      if (page.objects.size() == kPage) {
        page.next = page.objects.back().key;
        break;
      }
      const std::chrono::system_clock::time_point made{std::chrono::seconds(at->second.made)};
      page.objects.push_back({at->first, at->second.text.size(), made});
    }
    return page;
  }

  Result<> remove(const std::string& key, const io::RequestLimits& /*limits*/) override {
    TRY(begin());
    if (actor_.killed) return Error(ECANCELED);
    world_.remove(key);
    return lose_reply();
  }

  io::RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  static constexpr size_t kPage = 8;

  Result<> begin() {
    world_.pass_turn(actor_);
    if (world_.is_over()) return Error(ECANCELED);
    if (world_.happens(40)) return Error(EAGAIN, "answers 500");
    return success();
  }
  Result<> lose_reply() {
    if (world_.happens(20)) return Error(ECONNRESET, "the connection broke");
    if (world_.happens(60)) actor_.killed = true;
    if (actor_.killed) return Error(ECANCELED);
    return success();
  }

  World& world_;
  Actor& actor_;
  const std::string url_ = "simulated:";
  io::RequestCounts counts_;
};

// A step of a mount at one moment.
class SimulatedImage : public StepImage {
 public:
  SimulatedImage(World& world, const Actor& actor, std::string tag)
      : world_(world), actor_(actor), tag_(std::move(tag)), step_(actor.disk.at(tag_)), entries_(entries_of(step_)) {}

  const std::string& tag() const override { return tag_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::vector<io::Digest>> digests(size_t index) const override {
    const std::string& content = step_.files.at(entries_[index].path);
    if (content.empty()) return std::vector<io::Digest>();
    return std::vector{digest_text(content)};
  }
  // Now and then the disk answers with another byte.
  Result<> read(size_t index, uint64_t offset, std::span<std::byte> buffer) const override {
    const std::string& content = step_.files.at(entries_[index].path);
    if (offset + buffer.size() > content.size()) return Error(EINVAL, "it is shorter");
    std::memcpy(buffer.data(), content.data() + offset, buffer.size());
    if (world_.happens(100)) buffer.front() ^= std::byte{1};
    return success();
  }
  Result<bool> is_current() const override { return actor_.disk.at(tag_).version == step_.version; }
  Result<bool> may_be_voted_for() const override {
    const DiskStep& step = actor_.disk.at(tag_);
    return step.version == step_.version && step.quiet && !step.outlived;
  }
  const formats::CompletenessFacts& facts() const override { return facts_; }
  const std::string& attempt() const override { return step_.attempt; }

 private:
  World& world_;
  const Actor& actor_;
  const std::string tag_;
  const DiskStep step_;
  const std::vector<Entry> entries_;
  const formats::CompletenessFacts facts_;
};

// What a mount does as long as its process lives.
class Mount {
 public:
  Mount(World& world, Actor& actor) : world_(world), actor_(actor), store_(world, actor) {
    settings_.folder = world.folder();
    settings_.parallel = 1;
    settings_.pack_bytes = 24;
    settings_.name = [this](const std::string& tag, uint32_t slot) { return world_.name_push(tag, slot, began_); };
  }

  void live() {
    while (!world_.is_over() && !actor_.killed) {
      bool settled = world_.is_calm();
      for (const auto& [tag, step] : actor_.disk) {
        if (world_.is_over() || actor_.killed) return;
        settled = work(tag, step) && settled;
      }
      actor_.settled = settled;
      world_.pass_turn(actor_);
    }
  }

 private:
  struct Work {
    std::unique_ptr<SimulatedImage> image;
    std::optional<PushJournal> journal;
    std::optional<PushedPart> pushed;
    ElectionMemory memory;
  };

  // Returns whether the step is committed as it is here.
  bool work(const std::string& tag, const DiskStep& step) {
    Work& work = works_[tag];
    if (work.image && !work.image->is_current().value()) work.image.reset();
    if (!work.image) {
      if (!step.quiet) return false;
      work.image = std::make_unique<SimulatedImage>(world_, actor_, tag);
      work.pushed.reset();
    }
    if (!work.pushed && !push(tag, work)) return false;
    const auto status = advance(store_, actor_.slot, *work.image, *work.pushed, work.memory, settings_);
    if (!status) return false;
    if (status.value().state == TagStatus::State::push_again) work.pushed.reset();
    return status.value().state == TagStatus::State::committed;
  }

  bool push(const std::string& tag, Work& work) {
    if (!work.journal) {
      auto journal = PushJournal::open(fmt::format("{}/{}-{}", world_.folder(), actor_.id, tag), "remote");
      if (!journal) return false;
      work.journal.emplace(std::move(journal).value());
    }
    began_ = world_.now();
    auto pushed = push_part(store_, actor_.slot, *work.image, *work.journal, settings_);
    if (!pushed) return false;
    work.pushed = std::move(pushed).value();
    work.memory = {};
    return true;
  }

  World& world_;
  Actor& actor_;
  SimulatedStore store_;
  PushSettings settings_;
  uint64_t began_ = 0;
  std::map<std::string, Work> works_;
};

// Removes steps, ends pushes and deletes packs, as the rules of the remote allow: a model of what slot 0 will do.
class Collector {
 public:
  Collector(World& world, Actor& actor) : world_(world), actor_(actor) {}

  void live() {
    actor_.settled = true;
    while (!world_.is_over() && !world_.is_calm()) {
      if (world_.roll(4) == 0) remove_steps();
      if (world_.roll(8) == 0) end_push();
      if (world_.roll(4) == 0) collect();
      world_.pass_turn(actor_);
    }
  }

 private:
  // All but the newest one, or one that chance picks.
  void remove_steps() {
    auto steps = world_.commits(false);
    if (steps.size() < 2) return;
    steps.pop_back();
    if (world_.roll(2) == 0) steps = {steps[world_.roll(steps.size())]};
    const std::string text = "gone";
    for (const CommittedStep& step : steps) {
      std::ignore = world_.put(gone_key(step.decision), io::content_of(text), io::PutMode::make);
    }
  }

  // Pushes of which nothing has come for days.
  void end_push() {
    std::map<PushName, uint64_t> newest;
    for (const auto& [key, object] : world_.objects()) {
      const auto push = push_of_pack(key);
      if (push) newest[*push] = std::max(newest[*push], object.made);
    }
    for (const auto& [push, made] : newest) {
      if (made + kDay > world_.now() || world_.find(part_key(push)) != nullptr) continue;
      const std::string text = "ended";
      std::ignore = world_.put(part_key(push), io::content_of(text), io::PutMode::make);
    }
  }

  static std::optional<PushName> push_of_pack(const std::string& key) {
    const std::string prefix = kPacks;
    if (!key.starts_with(prefix)) return std::nullopt;
    return parse_push(std::string_view(key).substr(prefix.size(), key.rfind('/') - prefix.size()));
  }

  // Has it been dead for a day?
  bool is_dead(const PushName& push) {
    const StoredObject* const part = world_.find(part_key(push));
    if (part == nullptr) return false;
    if (part->text == "ended") return part->made + kDay < world_.now();
    for (const auto& [key, object] : world_.objects()) {
      const auto gone = parse_gone_key(key);
      if (!gone || object.made + kDay > world_.now()) continue;
      const auto is_it = [&](const PartName& one) { return one.push == push; };
      if (std::ranges::any_of(world_.commit_of(*gone).parts, is_it)) return true;
    }
    return false;
  }

  // In two looks a day apart; then one delete after the other.
  void collect() {
    const auto staying = world_.packs_that_stay();
    std::map<std::string, uint64_t> dead;
    std::vector<std::string> deleted;
    for (const auto& [key, object] : world_.objects()) {
      const auto push = push_of_pack(key);
      if (!push || staying.contains(key) || !is_dead(*push)) continue;
      const auto seen = dead_.find(key);
      dead[key] = seen == dead_.end() ? world_.now() : seen->second;
      if (dead[key] + kDay < world_.now()) deleted.push_back(key);
    }
    dead_ = std::move(dead);
    for (const std::string& key : deleted) {
      world_.pass_turn(actor_);
      if (world_.is_over()) return;
      world_.remove(key);
    }
  }

  World& world_;
  Actor& actor_;
  std::map<std::string, uint64_t> dead_;  // since when it was seen to be
};

// The store as it is, for checks.
class PlainStore : public io::ObjectStore {
 public:
  explicit PlainStore(const World& world) : world_(world) {}

  Result<> put(const std::string& key, const io::ObjectContent& /*content*/, io::PutMode /*mode*/,
               const io::RequestLimits& /*limits*/) override {
    return Error(ENOTSUP, key);
  }
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const io::RequestLimits& /*limits*/) override {
    return world_.get(key, offset, buffer);
  }
  Result<io::ObjectPage> list(const std::string& prefix, const std::string& /*token*/,
                              const io::RequestLimits& /*limits*/) override {
    io::ObjectPage page;
    const auto& objects = world_.objects();
    for (auto at = objects.lower_bound(prefix); at != objects.end() && at->first.starts_with(prefix); ++at) {
      const std::chrono::system_clock::time_point made{std::chrono::seconds(at->second.made)};
      page.objects.push_back({at->first, at->second.text.size(), made});
    }
    return page;
  }
  Result<> remove(const std::string& key, const io::RequestLimits& /*limits*/) override { return Error(ENOTSUP, key); }
  io::RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  const World& world_;
  const std::string url_ = "simulated:";
  io::RequestCounts counts_;
};

const io::RequestLimits kNoLimits;

void World::add_actor(uint32_t slot, bool collector) {
  auto actor = std::make_unique<Actor>();
  actor->id = static_cast<uint32_t>(actors_.size());
  actor->collector = collector;
  actor->slot = {slot, slots_, fmt::format("host-{}", actor->id), fmt::format("mount-{}", actor->id)};
  actors_.push_back(std::move(actor));
}

void World::set_up() {
  slots_ = static_cast<uint32_t>(1 + roll(3));
  two_mounts_ = roll(8) == 0;
  named_attempts_ = roll(2) == 0;
  tags_ = {"step_1"};
  if (roll(2) == 0) tags_.emplace_back("step_2");
  calm_at_ = 100 + roll(700);
  for (uint32_t slot = 0; slot < slots_; ++slot) add_actor(slot, false);
  if (two_mounts_) add_actor(0, false);
  if (roll(4) != 0) add_actor(0, true);
}

void World::live(Actor& actor) {
  actor.turn.acquire();
  while (!over_ && !(actor.collector && calm_)) {
    actor.killed = false;
    if (actor.collector) {
      Collector(*this, actor).live();
    } else {
      Mount(*this, actor).live();
    }
  }
  end(actor);
}

void World::end(Actor& actor) {
  actor.ended = true;
  const auto other = std::ranges::find_if(actors_, [](const auto& one) { return !one->ended; });
  if (other == actors_.end()) {
    all_ended_.release();
  } else {
    (*other)->turn.release();
  }
}

SimulationResult World::run() {
  for (const auto& actor : actors_) {
    actor->thread = std::thread([this, one = actor.get()] { live(*one); });
  }
  actors_.front()->turn.release();
  all_ended_.acquire();
  for (const auto& actor : actors_) actor->thread.join();
  result_.requests = now_;
  return result_;
}

Actor& World::choose() {
  std::vector<Actor*> able, all;
  for (const auto& actor : actors_) {
    if (actor->ended) continue;
    all.push_back(actor.get());
    if (actor->stopped_until <= now_) able.push_back(actor.get());
  }
  const auto& from = able.empty() ? all : able;
  return *from[roll(from.size())];
}

void World::pass_turn(Actor& actor) {
  if (over_) return;
  ++now_;
  act();
  if (over_) return;
  Actor& next = choose();
  if (&next == &actor) return;
  next.turn.release();
  actor.turn.acquire();
}

bool World::is_settled() const {
  return std::ranges::all_of(actors_, [](const auto& actor) { return actor->settled; });
}

void World::act() {
  constexpr uint64_t kTwoMountsCalm = 200;
  if (!calm_ && now_ >= calm_at_) become_calm();
  if (calm_) {
    if (two_mounts_) {
      over_ = now_ > calm_at_ + kTwoMountsCalm;
    } else if (is_settled()) {
      check_end();
      over_ = true;
    } else if (now_ > calm_at_ + kMostCalm) {
      fail("the last attempt is not committed");
    }
    return;
  }
  if (roll(10) == 0) save_on();
  if (roll(80) == 0) any_actor().killed = true;
  if (roll(60) == 0) any_actor().stopped_until = now_ + roll(kLongestStop);
  if (roll(60) == 0) {
    auto& disk = any_actor().disk;
    if (!disk.empty()) ++disk.begin()->second.version;  // opened for writing, and closed
  }
  if (!late_puts_.empty() && roll(30) == 0) {
    const auto [key, text] = std::move(late_puts_.back());
    late_puts_.pop_back();
    std::ignore = put(key, io::content_of(text), io::PutMode::make);
  }
}

void World::become_calm() {
  if (attempt_ == 0) save_on();
  while (is_saving()) save_on();
  for (const auto& [key, text] : late_puts_) std::ignore = put(key, io::content_of(text), io::PutMode::make);
  late_puts_.clear();
  for (const auto& actor : actors_) {
    actor->stopped_until = 0;
    actor->settled = actor->collector;
  }
  calm_ = true;
}

void World::note_state(DiskStep& step, uint64_t attempt) {
  ++step.version;
  if (!step.states.empty()) step.states.back().until = now_;
  step.states.push_back({now_, kNever, attempt, content_of_step(step)});
}

// A save of all mounts goes a bit further. Each mount's new process begins before any of them writes.
void World::save_on() {
  if (!is_saving()) {
    saved_tag_ = tags_[roll(tags_.size())];
    ++attempt_;
    for (const auto& actor : actors_) {
      if (!actor->collector) to_write_.push_back(actor.get());
    }
    std::ranges::shuffle(to_write_, dice_);
    to_begin_ = to_write_;
    std::ranges::shuffle(to_begin_, dice_);
  }
  if (!to_begin_.empty()) {
    const auto step = to_begin_.back()->disk.find(saved_tag_);
    if (step != to_begin_.back()->disk.end()) step->second.outlived = true;
    to_begin_.pop_back();
    return;
  }
  write_on(*to_write_.back());
  half_written_ = !half_written_;
  if (!half_written_) to_write_.pop_back();
}

// Writes the first file, or all.
void World::write_on(Actor& actor) {
  DiskStep& step = actor.disk[saved_tag_];
  step.attempt = named_attempts_ ? fmt::format("attempt-{}", attempt_) : "";
  if (named_attempts_) step.files["attempt.txt"] = step.attempt;
  step.files["empty"] = "";
  step.quiet = half_written_;
  if (!half_written_) return note_state(step, 0);
  step.outlived = false;
  step.files[fmt::format("frozen{}.bin", actor.id)] = fmt::format("frozen of {}", actor.id);
  step.files[fmt::format("state{}.bin", actor.id)] = fmt::format("state {} of {}", roll(2), actor.id);
  step.files[fmt::format("weights{}.bin", actor.id)] = fmt::format("weights {} of {}", roll(2), actor.id);
  note_state(step, attempt_);
}

void World::fail(const std::string& what) {
  if (result_.broken.empty()) result_.broken = fmt::format("turn {}: {}", now_, what);
  over_ = true;
}

const StoredObject* World::find(const std::string& key) const {
  const auto found = objects_.find(key);
  return found == objects_.end() ? nullptr : &found->second;
}

Result<size_t> World::get(const std::string& key, uint64_t offset, std::span<std::byte> buffer) const {
  const StoredObject* const found = find(key);
  if (found == nullptr) return Error(ENOENT, key + ": there is none");
  const size_t first = std::min<uint64_t>(offset, found->text.size());
  const size_t length = std::min(buffer.size(), found->text.size() - first);
  std::memcpy(buffer.data(), found->text.data() + first, length);
  return length;
}

Result<> World::put(const std::string& key, const io::ObjectContent& content, io::PutMode mode) {
  std::string text(content.size, '\0');
  TRY(content.read(0, std::as_writable_bytes(std::span(text))));
  const auto found = objects_.find(key);
  if (found != objects_.end() && mode == io::PutMode::make) return Error(EEXIST, key + " is there already");
  if (found != objects_.end() && found->second.text != text) fail(key + " changes");
  objects_[key] = {std::move(text), now_};
  check_put(key);
  return success();
}

void World::remove(const std::string& key) {
  objects_.erase(key);
  check_standing();
}

void World::check_put(const std::string& key) {
  const uint64_t size = objects_.at(key).text.size();
  const auto push = parse_part_key(key);
  const auto step = parse_step_key(key);
  if (push && size > kMostVoidBytes) check_part(*push);
  if (!step) return;
  if (step->n > 1 && find(step_key({step->tag, step->n - 1})) == nullptr) fail(key + ": the one before is undecided");
  if (size > kMostVoidBytes) {
    ++result_.commits;
    check_commit(key);
  } else {
    ++result_.voids;
  }
}

const PartHeader& World::header_of(const PushName& push) {
  const auto known = headers_.find(push);
  if (known != headers_.end()) return known->second;
  PlainStore store(*this);
  auto header = fetch_part_header(store, push, kNoLimits);
  if (!header) fail(header.error().message());
  return headers_[push] = header ? std::move(header).value() : PartHeader{};
}

const Commit& World::commit_of(const DecisionName& decision) {
  const std::string key = step_key(decision);
  const auto known = commits_.find(key);
  if (known != commits_.end()) return known->second;
  PlainStore store(*this);
  auto commit = fetch_commit(store, decision, kNoLimits);
  if (!commit) fail(commit.error().message());
  return commits_[key] = commit ? std::move(commit).value() : Commit{};
}

std::vector<CommittedStep> World::commits(bool gone) {
  PlainStore store(*this);
  auto steps = list_steps(store, kNoLimits);
  if (!steps) fail(steps.error().message());
  if (!steps) return {};
  std::erase_if(steps.value(), [&](const CommittedStep& step) { return step.gone != gone; });
  return std::move(steps).value();
}

std::set<std::string> World::packs_that_stay() {
  std::set<PushName> removed;
  for (const CommittedStep& step : commits(true)) {
    for (const PartName& part : commit_of(step.decision).parts) removed.insert(part.push);
  }
  for (const CommittedStep& step : commits(false)) {
    for (const PartName& part : commit_of(step.decision).parts) removed.erase(part.push);
  }
  std::set<std::string> staying;
  for (const auto& [key, object] : objects_) {
    const auto push = parse_part_key(key);
    if (!push || object.text.size() <= kMostVoidBytes || removed.contains(*push)) continue;
    for (const UsedPush& used : header_of(*push).pushes) {
      for (const auto& [first, last] : used.packs) {
        for (uint32_t pack = first; pack <= last; ++pack) staying.insert(pack_key(used.push, pack));
      }
    }
  }
  return staying;
}

void World::check_part(const PushName& push) {
  std::set<PushName> committed;
  for (const bool gone : {false, true}) {
    for (const CommittedStep& step : commits(gone)) {
      for (const PartName& part : commit_of(step.decision).parts) {
        for (const UsedPush& used : header_of(part.push).pushes) committed.insert(used.push);
      }
    }
  }
  for (const UsedPush& used : header_of(push).pushes) {
    if (used.push == push || committed.contains(used.push)) continue;
    const StoredObject* const part = find(part_key(used.push));
    if (part == nullptr || part->text.size() <= kMostVoidBytes || part->made + kLatest >= began_.at(push)) continue;
    fail(fmt::format("{} borrows from {}, which is in no commit", push.text(), used.push.text()));
  }
}

void World::check_chunks(const Part& part, const std::string& key) {
  for (const Entry& entry : part.entries()) {
    const auto chunks = part.chunks(entry.first_chunk, entry.chunks());
    for (const Chunk& chunk : chunks.value()) {
      const std::string pack = pack_key(part.header().pushes[chunk.push].push, chunk.pack);
      const StoredObject* const found = find(pack);
      if (found == nullptr) return fail(fmt::format("{}: {} is not there", key, pack));
      if (found->text.size() < chunk.offset ||
          digest_text(found->text.substr(chunk.offset, chunk.length)) != chunk.digest)
        return fail(fmt::format("{}: {} holds something else than {} did", key, pack, entry.path));
    }
  }
}

void World::check_commit(const std::string& key) {
  PlainStore store(*this);
  const auto commit = fetch_commit(store, *parse_step_key(key), kNoLimits);
  if (!commit) return fail(commit.error().message());
  if (commit.value().parts.size() != slots_) return fail(key + ": it lacks slots");
  std::vector<PartHeader> headers;
  for (const PartName& name : commit.value().parts) {
    const auto part = fetch_part(store, name.push, name.digest, folder(), kNoLimits);
    if (!part) return fail(part.error().message());
    check_chunks(part.value(), key);
    headers.push_back(part.value().header());
  }
  check_moment(headers, key);
}

void World::check_moment(const std::vector<PartHeader>& parts, const std::string& key) {
  std::vector<std::vector<DiskStep::State>> held;  // by each part's mount
  std::set<uint64_t> moments, attempts;
  for (const PartHeader& part : parts) {
    const auto mount =
        std::ranges::find_if(actors_, [&](const auto& actor) { return actor->slot.mount == part.mount; });
    auto states = (*mount)->disk.at(part.push.tag).states;
    std::erase_if(states, [&](const auto& state) { return state.content != part.content || state.attempt == 0; });
    for (const auto& state : states) {
      moments.insert(state.since);
      attempts.insert(state.attempt);
    }
    held.push_back(std::move(states));
  }
  const auto all_held = [&](const auto& fits) {
    return std::ranges::all_of(held, [&](const auto& states) { return std::ranges::any_of(states, fits); });
  };
  const bool one_moment = std::ranges::any_of(moments, [&](uint64_t moment) {
    return all_held([&](const auto& state) { return state.since <= moment && moment < state.until; });
  });
  const bool one_attempt = std::ranges::any_of(attempts, [&](uint64_t attempt) {
    return all_held([&](const auto& state) { return state.attempt == attempt; });
  });
  if (!one_moment) return fail(key + ": at no moment all mounts held it");
  if (!one_attempt) fail(key + ": it mixes attempts");
}

// What stands keeps its packs.
void World::check_standing() {
  for (const CommittedStep& step : commits(false)) {
    for (const PartName& part : commit_of(step.decision).parts) {
      for (const UsedPush& used : header_of(part.push).pushes) {
        for (const auto& [first, last] : used.packs) {
          for (uint32_t pack = first; pack <= last; ++pack) {
            if (find(pack_key(used.push, pack)) != nullptr) continue;
            return fail(fmt::format("{} stands, and {} was deleted", step.name(), pack_key(used.push, pack)));
          }
        }
      }
    }
  }
}

void World::check_end() {
  PlainStore store(*this);
  for (const std::string& tag : tags_) {
    const auto decisions = list_decisions(store, tag, kNoLimits);
    for (const auto& actor : actors_) {
      const auto step = actor->disk.find(tag);
      if (actor->collector || step == actor->disk.end()) continue;
      if (decisions.value().commits.empty()) return fail(tag + " is not committed");
      const auto commit = fetch_commit(store, decisions.value().commits.back().decision, kNoLimits);
      const PartName& part = commit.value().parts.at(actor->slot.slot);
      if (header_of(part.push).content == content_of_step(step->second)) continue;
      return fail(fmt::format("{}: the last commit is not what {} holds", tag, actor->slot.host));
    }
  }
}

}  // namespace

SimulationResult simulate(const SimulationPlan& plan) {
  std::filesystem::create_directories(plan.folder);
  SimulationResult result = World(plan).run();
  std::filesystem::remove_all(plan.folder);
  return result;
}

}  // namespace ckptfs::meta::remote::testing
