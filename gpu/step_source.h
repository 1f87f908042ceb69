// Where the bytes of a checkpoint come from: a folder or a file (folder_source.h), or a remote (remote_source.h).
//
// Thread safety: only one thread at a time may call load(); everything else is constant.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/load.h"
#include "gpu/read_plan.h"
#include "gpu/staging.h"
#include "io/result.h"
#include "meta/formats/manifest.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::gpu {

// How long a remote is waited for.
struct RemoteWait {
  std::chrono::milliseconds time{60'000};   // for each request, tries again included
  const std::atomic<bool>* stop = nullptr;  // set: what waits ends within a second, with ECANCELED
};

struct SourceReport {
  LoadReport moved;
  uint64_t through_mount = 0;  // files of a mount that could not be read past it
};

class StepSource {
 public:
  StepSource() = default;
  StepSource(const StepSource&) = delete;
  StepSource& operator=(const StepSource&) = delete;
  virtual ~StepSource() = default;

  virtual const std::string& path() const = 0;  // or its address: for messages
  virtual bool is_step() const = 0;             // else it is a single file
  virtual const meta::formats::StepFiles& files() const = 0;
  // Fails if something of the files could not be fetched: then what their readers have made of them is not whole.
  virtual Result<> check_fetched() const { return success(); }
  // Wanted::file is an index into files().list(). Like load() of load.h otherwise.
  virtual Result<SourceReport> load(Staging& staging, std::vector<Wanted> wanted, Stream stream) = 0;
  // Tells the daemon of the mount how long the ranks of a group took to load. Does nothing without a mount.
  virtual Result<> tell_loaded(const meta::formats::RankTimes& times) const = 0;
};

}  // namespace ckptfs::gpu
