#include "meta/remote/server_time.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>

#include "io/fault.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

std::chrono::seconds a_day() {
  const auto shorter = io::fault_value("remote_day");
  return shorter ? std::chrono::seconds(std::stoll(*shorter)) : std::chrono::hours(24);
}

Result<ServerTime> ask_time(io::ObjectStore& store, const std::string& id, const std::function<Time()>& clock,
                            const io::RequestLimits& limits) {
  const std::string key = kProbe + id;
  ServerTime time;
  time.before = clock();
  TRY(io::make_object(store, key, "what time is it?", limits));
  time.after = clock();
  std::optional<Time> made;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    if (object.key == key) made = object.changed;
    return success();
  };
  auto listed = io::for_each_object(store, key, note, limits);
  TRY(store.remove(key, limits));
  TRY(listed);
  if (!made) {
    return Error(EIO, fmt::format("{}: {} was made, and is not listed: the list lags behind", store.url(), key));
  }
  time.there = *made;
  return time;
}

}  // namespace ckptfs::meta::remote
