// Would the rules of a remote keep a step, if it were pushed now? What lies there is asked at most once a minute.
//
// Thread safety: one thread owns it.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/remote_rules.h"

namespace ckptfs::fs {

class WantedSteps {
 public:
  // Why they would not keep a step of this tag, in words. Empty: they would, or a step of this tag stands there, so
  // that it is to be compared with what is here.
  Result<std::string> why_not(io::ObjectStore& remote, const std::string& tag, const io::RequestLimits& limits);

 private:
  Result<> update(io::ObjectStore& remote, const io::RequestLimits& limits);

  std::optional<std::chrono::steady_clock::time_point> read_;  // when
  meta::remote::RemoteRules rules_;
  std::vector<uint64_t> numbers_;  // of the steps that stand there, ascending
  std::set<std::string> tags_;     // likewise
};

}  // namespace ckptfs::fs
