// How a daemon's end went, for `ckptfs umount`, which is not its parent: words in memory that the daemon hands out
// while it serves, and writes when it has written everything else down. Thread safety: none needed.
#pragma once

#include <string>

#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::fs::cli {

class Outcome {
 public:
  // The daemon's side.
  static Result<Outcome> make();
  // To read from; for whoever asks.
  Result<io::Fd> reader() const;
  Result<> tell(const Result<>& ended) const;

  // What the daemon behind a reader has told. EIO: it ended before it told anything.
  static Result<> told(int reader);

 private:
  explicit Outcome(io::Fd memory) : memory_(std::move(memory)) {}
  io::Fd memory_;
};

}  // namespace ckptfs::fs::cli
