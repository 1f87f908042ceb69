// Which commit a step came from, if `ckptfs fetch` made it, or which one a push by hand made of it, if it was not known
// to be whole: noted with the step in the index. So it is not pushed again while it is that. Stateless; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/digest.h"
#include "io/result.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

struct FetchedStep {
  std::string remote;            // the id of the remote
  std::string tag;               // there, and here
  std::string name;              // of the commit: "global_step5~2"
  std::string decision;          // about it: what it is called may change
  std::optional<uint32_t> slot;  // whose files they are; none: of all slots
  io::Digest saved{};            // of what came (meta/remote/remote_fetch.h)
};

nlohmann::json to_json(const FetchedStep& fetched);
// EINVAL, in words.
Result<FetchedStep> fetched_step_from(const nlohmann::json& json);

// None: nobody fetched the step.
Result<std::optional<FetchedStep>> fetched_step(const meta::Store& store, meta::InodeNumber step);
// Not durable on return.
Result<> note_fetched(meta::Store& store, meta::InodeNumber step, const FetchedStep& fetched);

}  // namespace ckptfs::fs
