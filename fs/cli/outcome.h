// Tells `ckptfs umount`, which is not the daemon's parent, how the daemon's end went. The daemon hands out a piece of
// memory while it serves. It writes the outcome there when it has written everything else down. Thread safety: none
// needed.
#pragma once

#include <string>

#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::fs::cli {

class Outcome {
 public:
  // The daemon's side.
  static Result<Outcome> make();
  // A descriptor for a process that wants to read the outcome.
  Result<io::Fd> reader() const;
  Result<> tell(const Result<>& ended) const;

  // Returns what the daemon has told. EIO: it ended before it told anything.
  static Result<> told(int reader);

 private:
  explicit Outcome(io::Fd memory) : memory_(std::move(memory)) {}
  io::Fd memory_;
};

}  // namespace ckptfs::fs::cli
