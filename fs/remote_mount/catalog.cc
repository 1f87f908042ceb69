#include "fs/remote_mount/catalog.h"

#include <algorithm>
#include <cerrno>

#include "fs/remote_mount/places.h"
#include "io/printable.h"
#include "meta/formats/checkpoint.h"
#include "meta/remote/commit.h"

namespace ckptfs::fs::remote_mount {

using meta::remote::CommittedStep;
using meta::remote::RemoteFiles;
using meta::remote::RemoteStep;

namespace {

constexpr uint64_t kMostReadOfStep = uint64_t{2} << 30;  // by the readers of formats
constexpr uint32_t kModeBits = 0777;                     // none that gives a program rights
constexpr uint32_t kReadBits = 0555;

Error in_step(const CommittedStep& step, const Error& why) { return with_name(io::printable(step.name()), why); }

}  // namespace

views::Access Ownership::access_of(const meta::remote::Entry& entry) const {
  if (!only) return {entry.uid, entry.gid, entry.mode & kModeBits};
  const bool enters = entry.kind == meta::remote::Entry::Kind::folder || (entry.mode & 0111U) != 0;
  return {only->first, only->second, enters ? 0500U : 0400U};
}

std::shared_ptr<const StepList> Catalog::known_list(Clock::duration age) const {
  const io::MutexLock lock(mutex_);
  return list_ && Clock::now() - list_->asked <= age ? list_ : nullptr;
}

Result<std::shared_ptr<const StepList>> Catalog::list(const io::RequestLimits& limits) {
  const auto called = Clock::now();
  const io::MutexLock turn(listing_);
  {
    const io::MutexLock lock(mutex_);
    if (list_ && list_->asked >= called) return list_;
  }
  const auto asked = Clock::now();
  TRY_ASSIGN(auto steps, meta::remote::list_steps(store_, limits));
  if (steps.empty()) TRY(check_id(limits));
  const io::MutexLock lock(mutex_);
  TRY_ASSIGN(const auto made, numbered(std::move(steps)));
  made->asked = asked;
  list_ = made;
  return list_;
}

Result<std::shared_ptr<StepList>> Catalog::numbered(std::vector<CommittedStep> steps) {
  auto made = std::make_shared<StepList>();
  for (CommittedStep& step : steps) {
    if (step.gone) continue;
    const auto [known, fresh] = by_decision_.try_emplace(step.decision, static_cast<uint32_t>(numbers_.size()));
    if (fresh && numbers_.size() > kMostStepNumber) return Error(EOVERFLOW, "the remote has too many steps");
    if (fresh) numbers_.push_back(step);
    made->names.emplace(step.name(), made->steps.size());
    made->steps.push_back({known->second, std::move(step)});
  }
  return made;
}

std::shared_ptr<const OpenedStep> Catalog::known_step(uint32_t number) {
  const io::MutexLock lock(mutex_);
  const auto found = kept_.find(number);
  if (found == kept_.end()) return nullptr;
  found->second.used = Clock::now();
  return found->second.step;
}

std::shared_ptr<const RemoteView> Catalog::known_view(uint32_t number) {
  const io::MutexLock lock(mutex_);
  const auto found = kept_.find(number);
  if (found == kept_.end()) return nullptr;
  found->second.used = Clock::now();
  return found->second.view;
}

Result<CommittedStep> Catalog::listed(uint32_t number) const {
  const io::MutexLock lock(mutex_);
  if (number >= numbers_.size()) return Error(ESTALE);
  return numbers_[number];
}

std::shared_ptr<io::Mutex> Catalog::turn_for(uint32_t number) {
  const io::MutexLock lock(mutex_);
  std::erase_if(turns_, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<io::Mutex>& known = turns_[number];
  auto turn = known.lock();
  if (!turn) known = turn = std::make_shared<io::Mutex>();
  return turn;
}

Result<std::shared_ptr<const OpenedStep>> Catalog::open(uint32_t number, const io::RequestLimits& limits) {
  const auto turn = turn_for(number);
  const io::MutexLock mine(*turn);
  if (auto known = known_step(number)) return known;
  return fetch(number, limits);
}

Result<std::shared_ptr<const OpenedStep>> Catalog::fetch(uint32_t number, const io::RequestLimits& limits) {
  TRY_ASSIGN(const CommittedStep listed_step, listed(number));
  auto fetched = [&]() -> Result<std::shared_ptr<const OpenedStep>> {
    TRY_ASSIGN(RemoteStep opened, RemoteStep::open(store_, listed_step, folder_, limits));
    if (opened.slots() != facts_.slots) {
      return Error(EBADMSG, "its commit has " + std::to_string(opened.slots()) + " slots, and the remote has " +
                                std::to_string(facts_.slots));
    }
    auto step = std::make_shared<const RemoteStep>(std::move(opened));
    TRY_ASSIGN(StepFiles whole, StepFiles::make(*step, step->whole()));
    OpenedStep made{step, std::move(whole), {}, 0, 0};
    made.memory = made.whole.memory();
    for (uint32_t slot = 0; slot < step->slots(); ++slot) {
      made.memory += step->part(slot).entries().size() * sizeof(meta::remote::Entry);
      made.on_disk += step->part(slot).size();
      if (step->slots() == 1) break;
      TRY_ASSIGN(StepFiles own, StepFiles::make(*step, step->of_slot(slot)));
      made.memory += own.memory();
      made.slots.push_back(std::move(own));
    }
    return std::make_shared<const OpenedStep>(std::move(made));
  }();
  if (!fetched) return in_step(listed_step, fetched.error());
  const io::MutexLock lock(mutex_);
  kept_[number] = {fetched.value(), nullptr, Clock::now()};
  make_room(number);
  return fetched;
}

Result<std::shared_ptr<const RemoteView>> Catalog::view(uint32_t number, const io::RequestLimits& limits) {
  const auto turn = turn_for(number);
  const io::MutexLock mine(*turn);
  if (auto known = known_view(number)) return known;
  auto step = known_step(number);
  if (!step) {
    TRY_ASSIGN(step, fetch(number, limits));
  }
  auto made = make_view(step, limits);
  if (!made) return in_step(step->step->step(), made.error());
  const io::MutexLock lock(mutex_);
  kept_[number] = {step, made.value(), Clock::now()};
  make_room(number);
  return made;
}

Result<std::shared_ptr<const RemoteView>> Catalog::make_view(const std::shared_ptr<const OpenedStep>& step,
                                                             const io::RequestLimits& limits) {
  auto files = std::make_unique<RemoteFiles>(reader_, step->step, step->whole.list(), io::ReadLimit(kMostReadOfStep),
                                             limits.deadline);
  views::Source source;
  source.files = files->list();
  source.map = meta::formats::read_checkpoint(*files);
  // What could not be fetched is no property of the step, and a view without it would be kept.
  TRY(files->outcome());
  const auto& entries = step->whole.list().entries;
  for (uint32_t index = 0; index < entries.size(); ++index) {
    if (step->step->entry(entries[index]).kind != meta::remote::Entry::Kind::file) continue;
    source.access.push_back(reachable(*step, index));
  }
  source.digests.resize(source.files.size());
  source.folder = ownership_.access_of(step->step->entry(entries[0]));
  source.folder.mode &= kReadBits;
  source.version = step->step->store().url() + '\0' + step->step->step().name();
  return std::make_shared<const RemoteView>(step, std::move(files), std::move(source));
}

// Who may read the file, through all folders on the way.
views::Access Catalog::reachable(const OpenedStep& step, uint32_t index) const {
  views::Access found = ownership_.access_of(step.step->entry(*step.whole.at(index)));
  for (uint32_t at = index; at != 0;) {
    at = step.whole.parent(at);
    const views::Access folder = ownership_.access_of(step.step->entry(*step.whole.at(at)));
    const bool same = folder.uid == found.uid && folder.gid == found.gid;
    if (!same && (folder.mode & 0001U) == 0) return {0, 0, 0400};
    if (same && (folder.mode & 0010U) == 0) found.mode &= ~0040U;
    if (same && (folder.mode & 0001U) == 0) found.mode &= ~0004U;
  }
  found.mode &= kReadBits;
  return found;
}

// What is no remote any more has no list, either: its folder may be one that something else was mounted on.
Result<> Catalog::check_id(const io::RequestLimits& limits) {
  const auto facts = meta::remote::read_facts(store_, limits);
  if (!facts) return Error(EIO, store_.url() + ": it was a remote, and is none now: " + facts.error().message());
  if (facts.value().id == facts_.id) return success();
  return Error(EIO, store_.url() + ": it is another remote than when it was mounted; mount it again");
}

bool Catalog::is_too_much() const {
  size_t memory = 0, parts = 0;
  uint64_t on_disk = 0;
  for (const auto& [number, one] : kept_) {
    memory += one.step->memory + (one.view ? one.view->view.memory() : 0);
    on_disk += one.step->on_disk;
    parts += one.step->step->slots();
  }
  return memory > kMostMemory || on_disk > kMostOnDisk || parts > kMostParts;
}

void Catalog::make_room(uint32_t kept) {
  while (kept_.size() > 1 && is_too_much()) {
    auto oldest = kept_.end();
    for (auto at = kept_.begin(); at != kept_.end(); ++at) {
      if (at->first != kept && (oldest == kept_.end() || at->second.used < oldest->second.used)) oldest = at;
    }
    kept_.erase(oldest);
  }
}

Catalog::Counts Catalog::counts() const {
  const io::MutexLock lock(mutex_);
  Counts counts{list_ ? list_->steps.size() : 0, kept_.size(), 0};
  for (const auto& [number, one] : kept_) counts.memory += one.step->memory + (one.view ? one.view->view.memory() : 0);
  return counts;
}

}  // namespace ckptfs::fs::remote_mount
