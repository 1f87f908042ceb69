// A committed step becomes a step of a mount. The caller makes the folder, and publishes it (fs/cli/fetch.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/digest.h"
#include "io/result.h"
#include "meta/remote/remote_step.h"
#include "meta/remote/step_writer.h"

namespace ckptfs::meta::remote {

struct FetchReport {
  uint64_t fetched = 0;  // bytes
  uint64_t shared = 0;   // bytes that were copied from other steps, on a mount by sharing their blocks
  uint64_t found = 0;    // bytes that an earlier fetch had left
  io::Digest saved{};    // as PartHeader::saved
  StepWriter::OwnFolder own_folder;
};

// Writes the step, or what one slot holds of it, to a folder that is there, durably; times and modes as export_step().
// That folder stays the caller's alone: who publishes it makes it what `own_folder` says.
// What an earlier call left there is compared, and fetched only where it is wrong. `lenders`: folders of steps that may
// hold the same chunks. Errors are in words: ENOSPC: what is missing does not fit; nothing was fetched. EEXIST: the
// folder holds something else, too.
Result<FetchReport> fetch_step(const RemoteStep& step, std::optional<uint32_t> slot, const std::string& folder,
                               const std::vector<std::string>& lenders, const ReadSettings& settings);

// Reads a folder and compares its names and contents with the step, or with what one slot holds of it. Says what
// differs, in words; empty: nothing.
Result<std::string> find_difference(const RemoteStep& step, std::optional<uint32_t> slot, const std::string& folder,
                                    const ReadSettings& settings);

}  // namespace ckptfs::meta::remote
