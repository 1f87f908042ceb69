// What time it is by the store's clock: what an object gets that is made now. Costs a PUT, a list and a DELETE.
// Stateless; any thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "io/objects/object_store.h"
#include "io/result.h"

namespace ckptfs::meta::remote {

using Time = std::chrono::system_clock::time_point;

struct ServerTime {
  Time there;          // in whole seconds
  Time before, after;  // by our clock: it was asked in between
};

// `id`: of the object that is made for it. `clock`: ours. EIO, in words: the list lags behind.
Result<ServerTime> ask_time(io::ObjectStore& store, const std::string& id, const std::function<Time()>& clock,
                            const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
