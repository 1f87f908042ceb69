// What remote this is: the object series.json. It is made once, by the first mount that is told of the remote, and
// never changed.
#pragma once

#include <cstdint>
#include <string>

#include "io/objects/object_store.h"
#include "io/result.h"

namespace ckptfs::meta::remote {

struct RemoteFacts {
  std::string id;      // 16 hexadecimal digits
  uint32_t slots = 1;  // how many mounts together hold a step
  std::string host;    // that made it
  std::string made;    // when, by that host's clock: "2026-11-26T12:00:00Z"
};

// ENOENT, in words: nothing was pushed there yet. EPROTO: of another version, or somebody else's object.
Result<RemoteFacts> read_facts(io::ObjectStore& store, const io::RequestLimits& limits);
// Makes the object, or finds that it is there. EEXIST, naming both hosts: it is there with another number of slots.
Result<RemoteFacts> found_remote(io::ObjectStore& store, uint32_t slots, const std::string& host,
                                 const io::RequestLimits& limits);

// EPROTO, in words: what lies there is of the first format, which no ckptfs that was released has made.
Result<> refuse_first_format(io::ObjectStore& store, const io::RequestLimits& limits);

// Tries whether the store keeps what the format relies on: it refuses to make an object a second time, it answers a
// range with that range, and it lists what is there. EPROTO, in words, with what to do: it does not, or has a remote of
// the first format. What was tried is removed.
Result<> probe_store(io::ObjectStore& store, const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
