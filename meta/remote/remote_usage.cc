#include "meta/remote/remote_usage.h"

#include "io/parallel.h"
#include "meta/remote/inventory.h"

namespace ckptfs::meta::remote {

Result<RemoteUsage> measure_usage(io::ObjectStore& store, const UsageSettings& settings) {
  const auto limits = [&] { return io::RequestLimits::within(settings.time, settings.stop); };
  TRY_ASSIGN(const Inventory inventory, take_inventory(store, settings.progress, limits()));
  RemoteUsage usage;
  usage.objects = inventory.objects;
  usage.bytes = inventory.bytes;
  for (const CommittedStep& step : inventory.steps) {
    if (!step.gone) usage.steps.push_back({step});
  }
  TRY(io::for_each_parallel(usage.steps.size(), settings.parallel, [&](size_t at) -> Result<> {
    StepUsage& step = usage.steps[at];
    TRY_ASSIGN(const Commit commit, fetch_commit(store, step.step.decision, limits()));
    for (const PartName& part : commit.parts) {
      const ListedFiles files = inventory.files_of(part.push);
      step.objects += files.objects;
      step.bytes += files.bytes;
    }
    return success();
  }));
  for (const StepUsage& step : usage.steps) usage.needed += step.bytes;
  for (const auto& [folder, files] : inventory.folders) usage.needless += files.bytes;
  usage.needless -= usage.needed;
  return usage;
}

}  // namespace ckptfs::meta::remote
