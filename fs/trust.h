// Which predictions are worth making. After a wrong one the mount backs off: the next few files of that name are not
// predicted, then twice as many after the next wrong one, up to a limit. A right one ends that.
//
// How far: a file that the writer's thread is reading is hardly ever the wrong guess, so only 4 files of its name are
// passed over, up to 64. For the file of the step before it is 16, up to 256, and names that differ only in numbers
// count as one name. Names that nothing is known of share one record: 2 files, then 4, and so on. So a step of which
// all has changed costs little, and the frozen layers of a partly trained model are still found: a name whose last
// prediction was right is predicted whatever came of the others. The figures are in fs/guesses.h and below.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <map>
#include <mutex>
#include <string>

namespace ckptfs::fs {

class Trust {
 public:
  struct Terms {
    unsigned first_pause = 0;  // files; doubled with each wrong guess
    unsigned longest_pause = 0;
    // Names that differ only in numbers, too, and those that nothing is known of: these with a shorter first pause, as
    // most of them may yet be right.
    bool alike = false;
  };
  explicit Trust(Terms terms) : terms_(terms) {}

  // To be asked once for each file: it counts them.
  bool ask(const std::string& name);
  // What came of a guess.
  void learn(const std::string& name, bool right);

 private:
  struct Record {
    unsigned pause = 0;  // after the last guess; 0: it was right
    unsigned left = 0;   // of it
    bool ask();
  };
  using Records = std::map<std::string, Record>;
  void learn(Records& records, const std::string& key, bool right) const;
  void learn(Record& record, unsigned first_pause, bool right) const;

  static constexpr size_t kMostRecords = 4096;
  static constexpr unsigned kFirstPauseOfUnknown = 2;

  const Terms terms_;
  std::mutex mutex_;
  Records names_;     // guarded by mutex_
  Records patterns_;  // guarded by mutex_; by names without their numbers
  Record unknown_;    // guarded by mutex_; of names that were in neither
};

}  // namespace ckptfs::fs
