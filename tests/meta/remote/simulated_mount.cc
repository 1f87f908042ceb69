#include "tests/meta/remote/simulated_mount.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "meta/remote/slot_parts.h"
#include "meta/remote/tombstone.h"

namespace ckptfs::meta::remote::testing {
namespace {

// A step of a mount at one moment.
class SimulatedImage : public StepImage {
 public:
  // `ahead`: of the mount's clock.
  SimulatedImage(World& world, std::string tag, const DiskStep& disk, uint32_t term, std::chrono::seconds ahead)
      : world_(world),
        tag_(std::move(tag)),
        disk_(disk),
        step_(disk),
        order_{term, step_.order},
        entries_(entries_of(step_.files)) {
    const auto time = [&](uint64_t seconds) { return Milliseconds(std::chrono::seconds(seconds) + ahead); };
    save_ = {step_.attempt, SaveLife{time(step_.began), time(step_.first), time(step_.last), {}}};
  }

  const std::string& tag() const override { return tag_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::vector<io::Digest>> digests(size_t index) const override {
    const std::string& content = step_.files.at(entries_[index].path);
    if (content.empty()) return std::vector<io::Digest>();
    return std::vector{digest_of_text(content)};
  }
  Result<> read(size_t index, uint64_t offset, std::span<std::byte> buffer) const override {
    const std::string& content = step_.files.at(entries_[index].path);
    if (offset + buffer.size() > content.size()) return Error(EINVAL, "it is shorter");
    std::memcpy(buffer.data(), content.data() + offset, buffer.size());
    if (world_.happens(Hazard::wrong_read, 100)) buffer.front() ^= std::byte{1};
    return success();
  }
  Result<bool> is_current() const override { return disk_.version == step_.version; }
  const formats::CompletenessFacts& facts() const override { return facts_; }
  Order order() const override { return order_; }
  const SaveFacts& save() const override { return save_; }

 private:
  World& world_;
  const std::string tag_;
  const DiskStep& disk_;  // as it is
  const DiskStep step_;   // as it was
  const Order order_;
  SaveFacts save_;
  const std::vector<Entry> entries_;
  const formats::CompletenessFacts facts_;
};

}  // namespace

SimulatedMount::SimulatedMount(World& world, std::string name, const Slot& slot, uint32_t term)
    : Actor(world, std::move(name)), slot_(slot), term_(term), ahead_(world.roll(2 * kDay)), store_(world, *this) {
  settings_.folder = world.folder();
  settings_.parallel = settings_.parallel_small = 1;
  settings_.piece_bytes = 40;
  settings_.id = [this] { return world_.roll_id(); };
  settings_.clock = [this] { return Time(std::chrono::seconds(world_.now()) + ahead_); };
}

void SimulatedMount::live() {
  std::map<std::string, Work> works;
  while (!must_end()) {
    bool all = world_.is_calm();
    for (const auto& [tag, step] : disk) {
      if (must_end()) return;
      const auto committed = work(tag, step, works[tag]);
      if (!committed && !met_hazard && world_.is_calm() && !must_end())
        world_.note(this, [&] { return committed.error().message(); });
      all = committed && committed.value() && all;
    }
    settled = all;
    const uint64_t longest = world_.is_calm() ? kHour : world_.is_patient() ? 2 * kDay : kDay / 2;
    world_.sleep(*this, world_.roll(3) == 0 ? 0 : world_.roll(longest));
  }
}

Result<bool> SimulatedMount::work(const std::string& tag, const DiskStep& step, Work& work) {
  if (work.image && !work.image->is_current().value()) work.image.reset();
  if (!work.image) {
    if (!step.quiet) return false;
    work.image = std::make_unique<SimulatedImage>(world_, tag, step, term_, ahead_);
    work.known = {};
    work.pushed.reset();
  }
  if (!work.pushed) {
    TRY_ASSIGN(const bool removed, is_removed(work));
    if (removed) return true;
    TRY(push(tag, work));
    if (!work.pushed->waits.empty()) {
      world_.note(this, [&] { return fmt::format("{} waits: {}", tag, work.pushed->waits); });
      work.pushed.reset();
      return false;
    }
  }
  TRY_ASSIGN(const TagStatus status, decide(store_, slot_, *work.pushed, work.known, work.memory, settings_));
  world_.note(this,
              [&] { return fmt::format("{} is in state {}: {}", tag, static_cast<int>(status.state), status.reason); });
  if (status.state == TagStatus::State::push_again || status.state == TagStatus::State::ended) work.pushed.reset();
  return status.state == TagStatus::State::committed;
}

// A step that was removed there is not pushed anew, unless slot 0 has done so.
Result<bool> SimulatedMount::is_removed(Work& work) {
  TRY_ASSIGN(const io::Digest saved, saved_of(*work.image));
  TRY_ASSIGN(const auto removed,
             find_removed(store_, work.image->tag(), slot_.slot, saved, work.image->order(), io::RequestLimits()));
  if (!removed || slot_.slot == 0) return removed.has_value();
  TRY_ASSIGN(const bool awaited, is_awaited(store_, slot_, *work.image, work.known, settings_));
  return !awaited;
}

Result<> SimulatedMount::push(const std::string& tag, Work& work) {
  if (!work.journal) {
    TRY_ASSIGN(auto journal, PushJournal::open(fmt::format("{}/{}-{}", world_.folder(), name(), tag), "remote"));
    work.journal.emplace(std::move(journal));
  }
  began = world_.now();
  met_hazard = met_short_list = false;
  TRY_ASSIGN(work.pushed, push_part(store_, slot_, *work.image, *work.journal, work.known, settings_));
  work.memory = {};
  return success();
}

}  // namespace ckptfs::meta::remote::testing
