#include "meta/remote/remote_usage.h"

#include <algorithm>
#include <map>
#include <utility>

#include "io/parallel.h"
#include "meta/remote/inventory.h"
#include "meta/remote/look.h"
#include "meta/remote/part.h"

namespace ckptfs::meta::remote {
namespace {

// The packs that a step uses, by push.
using PacksOfStep = std::map<PushName, PackRanges>;

class UsageCount {
 public:
  UsageCount(io::ObjectStore& store, const UsageSettings& settings) : store_(store), settings_(settings) {}

  Result<RemoteUsage> run() {
    TRY_ASSIGN(inventory_, take_inventory(store_, settings_.progress, limits()));
    usage_.objects = inventory_.objects;
    usage_.bytes = inventory_.bytes;
    for (const CommittedStep& step : inventory_.steps) {
      if (!step.gone) usage_.steps.push_back({step});
    }
    packs_.resize(usage_.steps.size());
    TRY(io::for_each_parallel(usage_.steps.size(), settings_.parallel, [this](size_t at) { return read(at); }));
    for (const auto& [push, objects] : inventory_.pushes) count(push, objects);
    return std::move(usage_);
  }

 private:
  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }

  Result<> read(size_t at) {
    TRY_ASSIGN(const Commit commit, fetch_commit(store_, usage_.steps[at].step.decision, limits()));
    for (const PartName& part : commit.parts) {
      TRY_ASSIGN(const PartHeader header, fetch_part_header(store_, part.push, limits()));
      usage_.steps[at].files += header.bytes;
      for (const UsedPush& used : header.pushes) {
        PackRanges& ranges = packs_[at][used.push];
        ranges.insert(ranges.end(), used.packs.begin(), used.packs.end());
      }
    }
    for (auto& [push, ranges] : packs_[at]) unite(ranges);
    return success();
  }

  // The packs of one push.
  void count(const PushName& push, const PushObjects& objects) {
    std::vector<std::pair<size_t, const PackRanges*>> users;
    for (size_t at = 0; at < packs_.size(); ++at) {
      const auto used = packs_[at].find(push);
      if (used != packs_[at].end()) users.emplace_back(at, &used->second);
    }
    for (const ListedPack& pack : objects.packs) {
      std::vector<size_t> its_users;
      for (const auto& [at, ranges] : users) {
        if (contains(*ranges, pack.pack)) its_users.push_back(at);
      }
      (its_users.empty() ? usage_.needless : usage_.needed) += pack.bytes;
      for (const size_t at : its_users) {
        StepUsage& step = usage_.steps[at];
        (its_users.size() == 1 ? step.alone : step.shared) += pack.bytes;
      }
    }
  }

  io::ObjectStore& store_;
  const UsageSettings& settings_;
  Inventory inventory_;
  std::vector<PacksOfStep> packs_;  // by the index of the step
  RemoteUsage usage_;
};

}  // namespace

Result<RemoteUsage> measure_usage(io::ObjectStore& store, const UsageSettings& settings) {
  return UsageCount(store, settings).run();
}

}  // namespace ckptfs::meta::remote
