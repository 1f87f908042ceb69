// What a remote mount knows of its remote: the list of steps, the steps that were opened, and their views.
//
// A list comes from lists of objects alone, and nothing of a step is asked for until somebody goes into it. Steps that
// were opened are kept, the last ones used, up to a number of bytes; what somebody holds stays. An error is never taken
// for "there is none".
//
// What blocks says so. It waits for the remote as long as its limits say, also while another thread does the same work,
// which is then done once.
//
// Thread safety: all of it. Lock: a turn first, then mutex_ (a leaf).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fs/remote_mount/step_files.h"
#include "fs/views/view.h"
#include "io/mutex.h"
#include "meta/remote/chunk_reader.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/remote_files.h"

namespace ckptfs::fs::remote_mount {

struct ListedStep {
  uint32_t number = 0;  // in places.h
  meta::remote::CommittedStep step;
};

struct StepList {
  std::vector<ListedStep> steps;                  // by the time of their commits; none that is gone
  std::unordered_map<std::string, size_t> names;  // of steps
  std::chrono::steady_clock::time_point asked;    // when the remote was asked for it

  const ListedStep* find(const std::string& name) const {
    const auto found = names.find(name);
    return found == names.end() ? nullptr : &steps[found->second];
  }
};

struct OpenedStep {
  std::shared_ptr<const meta::remote::RemoteStep> step;
  StepFiles whole;
  std::vector<StepFiles> slots;  // what each slot wrote; empty if there is but one
  size_t memory = 0;
  uint64_t on_disk = 0;  // bytes of the lists of its chunks, each in a nameless file

  const StepFiles& files(bool of_slot, uint32_t slot) const { return of_slot && !slots.empty() ? slots[slot] : whole; }
};

struct RemoteView {
  RemoteView(std::shared_ptr<const OpenedStep> step, std::unique_ptr<const meta::remote::RemoteFiles> step_files,
             views::Source source)
      : of(std::move(step)), files(std::move(step_files)), view(std::move(source)) {}

  const std::shared_ptr<const OpenedStep> of;
  const std::unique_ptr<const meta::remote::RemoteFiles> files;  // what the view's pieces lie in, by their index
  const views::View view;
};

// Whose the files are. In a mount that only one user may enter they are that user's, since their owners are those of
// another machine.
struct Ownership {
  std::optional<std::pair<uint32_t, uint32_t>> only;  // uid and gid

  views::Access access_of(const meta::remote::Entry& entry) const;
};

class Catalog {
 public:
  // How old a list may be that says what is there.
  static constexpr std::chrono::seconds kRecent{1};

  // `folder`: where the lists of chunks of opened steps lie, in nameless files. `reader` outlives the catalog.
  Catalog(io::ObjectStore& store, meta::remote::RemoteFacts facts, meta::remote::ChunkReader& reader,
          std::string folder, const Ownership& ownership)
      : store_(store), facts_(std::move(facts)), reader_(reader), folder_(std::move(folder)), ownership_(ownership) {}

  // Null: there is none that is no older.
  std::shared_ptr<const StepList> known_list(std::chrono::steady_clock::duration age) const;
  // Blocks: asks the remote, unless somebody has done so since this was called.
  Result<std::shared_ptr<const StepList>> list(const io::RequestLimits& limits);

  // Null: it is not open. ESTALE: there never was a step of this number.
  std::shared_ptr<const OpenedStep> known_step(uint32_t number);
  Result<meta::remote::CommittedStep> listed(uint32_t number) const;
  // Blocks.
  Result<std::shared_ptr<const OpenedStep>> open(uint32_t number, const io::RequestLimits& limits);

  // Likewise of the step's view.
  std::shared_ptr<const RemoteView> known_view(uint32_t number);
  Result<std::shared_ptr<const RemoteView>> view(uint32_t number, const io::RequestLimits& limits);

  struct Counts {
    uint64_t steps = 0;   // in the last list
    uint64_t opened = 0;  // steps that are kept
    size_t memory = 0;    // bytes that they take, with their views
  };
  Counts counts() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    std::shared_ptr<const OpenedStep> step;
    std::shared_ptr<const RemoteView> view;
    Clock::time_point used;
  };

  static constexpr size_t kMostMemory = size_t{32} << 20;
  static constexpr uint64_t kMostOnDisk = uint64_t{1} << 30;
  static constexpr size_t kMostParts = 512;  // each is a descriptor

  std::shared_ptr<io::Mutex> turn_for(uint32_t number);
  Result<std::shared_ptr<const OpenedStep>> fetch(uint32_t number, const io::RequestLimits& limits);
  Result<std::shared_ptr<const RemoteView>> make_view(const std::shared_ptr<const OpenedStep>& step,
                                                      const io::RequestLimits& limits);
  views::Access reachable(const OpenedStep& step, uint32_t index) const;
  Result<std::shared_ptr<StepList>> numbered(std::vector<meta::remote::CommittedStep> steps) REQUIRES(mutex_);
  bool is_too_much() const REQUIRES(mutex_);
  void make_room(uint32_t kept) REQUIRES(mutex_);
  Result<> check_id(const io::RequestLimits& limits);

  io::ObjectStore& store_;
  const meta::remote::RemoteFacts facts_;
  meta::remote::ChunkReader& reader_;
  const std::string folder_;
  const Ownership ownership_;
  io::Mutex listing_;  // a turn
  mutable io::Mutex mutex_;
  std::shared_ptr<const StepList> list_ GUARDED_BY(mutex_);
  std::vector<meta::remote::CommittedStep> numbers_ GUARDED_BY(mutex_);  // by their number
  std::map<meta::remote::DecisionName, uint32_t> by_decision_ GUARDED_BY(mutex_);
  std::unordered_map<uint32_t, Kept> kept_ GUARDED_BY(mutex_);
  std::unordered_map<uint32_t, std::weak_ptr<io::Mutex>> turns_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs::remote_mount
