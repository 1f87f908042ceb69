// What happened to the steps of series, in order, for `ckptfs watch`. An event is recorded in the batch that makes it
// so: none is lost, and none is told twice, whatever dies. The index keeps the newest ones (kKeptEvents).
//
// Names that go are noted for every series. When a step begins and when it is complete the ledger tells
// (meta/steps/ledger.h), so that is known in series that have rules only.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "io/result.h"
#include "meta/time.h"
#include "meta/types.h"

namespace ckptfs::meta {

struct StepEvent {
  enum class What : uint8_t {
    began,      // somebody writes to it who has not written to it since it was complete
    completed,  // it was found complete, first or again
    set_aside,  // `detail`: its new name
    renamed,    // `detail`: its new name, or its path if it is in another folder now
    thinned,    // of it only the weights are left
    pushed,     // `detail`: what it is called there
    removed,    // `detail`: the rules that removed it, or the command; empty: by `rm`
  };
  What what = What::began;
  WallTime time;
  InodeNumber step = 0;
  InodeNumber series = 0;
  uint32_t owner = 0;  // uid of the step's
  std::string tag;
  std::string detail;
};

const char* name_of(StepEvent::What what);  // "set_aside"
std::string encode_event(const StepEvent& event);
Result<StepEvent> decode_event(const std::string& text);

}  // namespace ckptfs::meta
