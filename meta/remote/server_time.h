// Times by the store's clock. What time it is there tells an object that is made now: a PUT, a list and a DELETE.
// Stateless; any thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "io/objects/object_store.h"
#include "io/result.h"

namespace ckptfs::meta::remote {

using Time = std::chrono::system_clock::time_point;

// The day in which what was removed can be read, and after which a push must say again that it goes on. The fault point
// "remote_day" gives tests a shorter one, in seconds.
std::chrono::seconds a_day();

struct ServerTime {
  Time there;          // in whole seconds
  Time before, after;  // by our clock: it was asked in between
};

// `id`: of the object that is made for it. `clock`: ours. EIO, in words: the list lags behind.
Result<ServerTime> ask_time(io::ObjectStore& store, const std::string& id, const std::function<Time()>& clock,
                            const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
