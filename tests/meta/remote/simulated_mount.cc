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
  SimulatedImage(World& world, std::string tag, const DiskStep& disk)
      : world_(world), tag_(std::move(tag)), disk_(disk), step_(disk), entries_(entries_of(step_.files)) {}

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
  Result<bool> may_be_voted_for() const override {
    return disk_.version == step_.version && disk_.quiet && !disk_.outlived;
  }
  const formats::CompletenessFacts& facts() const override { return facts_; }
  const std::string& attempt() const override { return step_.attempt; }

 private:
  World& world_;
  const std::string tag_;
  const DiskStep& disk_;  // as it is
  const DiskStep step_;   // as it was
  const std::vector<Entry> entries_;
  const formats::CompletenessFacts facts_;
};

}  // namespace

SimulatedMount::SimulatedMount(World& world, std::string name, const Slot& slot)
    : Actor(world, std::move(name)), slot_(slot), store_(world, *this) {
  settings_.folder = world.folder();
  settings_.parallel = settings_.parallel_small = 1;
  settings_.piece_bytes = 40;
  settings_.name = [this](const std::string& tag, uint32_t of_slot) {
    return PushName{tag, of_slot, world_.roll_id()};
  };
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
    work.image = std::make_unique<SimulatedImage>(world_, tag, step);
    work.pushed.reset();
  }
  if (!work.pushed) {
    TRY_ASSIGN(const bool removed, is_removed(*work.image));
    if (removed) return true;
    TRY(push(tag, work));
  }
  settings_.late = world_.checks().has_higher(tag) && world_.roll(2) == 0;
  TRY_ASSIGN(const TagStatus status, advance(store_, slot_, *work.image, *work.pushed, work.memory, settings_));
  world_.note(this,
              [&] { return fmt::format("{} is in state {}: {}", tag, static_cast<int>(status.state), status.reason); });
  if (status.state == TagStatus::State::push_again || status.state == TagStatus::State::ended) work.pushed.reset();
  return status.state == TagStatus::State::committed;
}

// A step that was removed there is not pushed anew, unless another slot waits for it.
Result<bool> SimulatedMount::is_removed(const StepImage& image) {
  TRY_ASSIGN(const io::Digest content, content_of(image));
  TRY_ASSIGN(const auto removed, find_removed(store_, image.tag(), slot_.slot, content, io::RequestLimits()));
  if (!removed) return false;
  TRY_ASSIGN(const bool awaited, has_newer_part(store_, image.tag(), slot_.slot, io::RequestLimits()));
  return !awaited;
}

Result<> SimulatedMount::push(const std::string& tag, Work& work) {
  if (!work.journal) {
    TRY_ASSIGN(auto journal, PushJournal::open(fmt::format("{}/{}-{}", world_.folder(), name(), tag), "remote"));
    work.journal.emplace(std::move(journal));
  }
  began = world_.now();
  met_hazard = met_short_list = false;
  TRY_ASSIGN(work.pushed, push_part(store_, slot_, *work.image, *work.journal, settings_));
  work.memory = {};
  return success();
}

}  // namespace ckptfs::meta::remote::testing
