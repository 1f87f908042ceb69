// Which files are worth a prediction. After a wrong prediction the next files of that name are not predicted; where
// asked for, neither are files whose names differ from it only in numbers. Each wrong prediction makes the pause
// longer. Files of unknown names pause likewise while predictions of unknown names turn out wrong: in such a step
// everything has changed. A name whose last prediction was right is always predicted: frozen layers among trained ones.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <map>
#include <string>

#include "io/mutex.h"

namespace ckptfs::fs {

class PredictionBackoff {
 public:
  struct Terms {
    unsigned first_pause = 0;  // files; doubled with each wrong prediction
    unsigned longest_pause = 0;
    // Names that differ only in numbers, too, and those that nothing is known of: these with a shorter first pause, as
    // most of them may yet be right.
    bool alike = false;
  };
  explicit PredictionBackoff(Terms terms) : terms_(terms) {}

  // May the source of this file be predicted? To be called once for each file, since it counts the files.
  bool ask(const std::string& name);
  // Learns whether a prediction was right.
  void learn(const std::string& name, bool right);

 private:
  struct Record {
    unsigned pause = 0;  // after the last prediction; 0: it was right
    unsigned left = 0;   // of it
    bool ask();
  };
  using Records = std::map<std::string, Record>;
  void learn(Records& records, const std::string& key, bool right) const;
  void learn(Record& record, unsigned first_pause, bool right) const;

  static constexpr size_t kMostRecords = 4096;
  static constexpr unsigned kFirstPauseOfUnknown = 2;

  const Terms terms_;
  io::Mutex mutex_;
  Records names_ GUARDED_BY(mutex_);
  Records patterns_ GUARDED_BY(mutex_);  // by names without their numbers
  Record unknown_ GUARDED_BY(mutex_);    // of names that were in neither
};

}  // namespace ckptfs::fs
