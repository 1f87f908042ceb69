// The step that a save makes, or adds swap state to: what stands under its tag, and the change that publishes it.
//
// Thread safety: one thread at a time; path() and unless_gone() from any.
#pragma once

#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

#include "io/fd.h"
#include "meta/steps/source.h"

namespace ckptfs::meta {

// One file on its way into the step.
struct SaveFile {
  PlannedFile plan;
  io::Fd live;               // O_RDONLY, where it is held
  uint64_t cow_reserve = 0;  // of the live file once it is cloned; as it is behind the gate, as mtime
  timespec mtime{};
  BlobNumber blob = 0;             // frozen blob the step will name
  bool cloned = false;             // else `blob` is the one it was last saved as
  bool spare = false;              // cloned, into a blob that is there already
  const SaveFile* same = nullptr;  // an earlier name of the same file: shares its blob
  bool writer_open = false;        // goes on changing: cannot count as saved
  struct stat stat {};             // of the frozen blob
};

class SaveStep {
 public:
  // `result`: is told of the step, its files and warnings.
  SaveStep(Store& store, const SaveRequest& request, SaveResult& result)
      : store_(store), tree_(store.tree()), request_(request), who_(request.who()), result_(result) {}

  // Before anything is done: looks at what stands under the tag already.
  Result<> inspect();
  bool holds_swap_state() const { return holds_swap_state_; }
  // The tag was saved before: the same save again is no error.
  Result<> compare_with(InodeNumber source, const std::vector<SaveFile>& files) const;
  // The step, in one batch.
  Result<> publish(InodeNumber source, const std::vector<SaveFile>& files);

  std::string path() const { return tree_.path_of(request_.series) + "/" + request_.tag; }
  // What was saved before may go until it is published again: its record, its file, or both.
  template <typename T>
  Result<T> unless_gone(Result<T> found) const {
    if (!found && found.error().errno_value() == ENOENT) return step_before_gone();
    return found;
  }

 private:
  Result<bool> step_holds_swap_state() const;
  Error exists() const;
  Error step_before_gone() const;
  InodeRecord new_folder(InodeNumber parent) const;
  Result<> put_step(Tree::Change& change, InodeNumber source, const std::vector<SaveFile>& files);
  std::string stale_names(const std::vector<SaveFile>& files);
  Result<InodeNumber> folder_for(Tree::Change& change, const PlannedFile& plan);
  Result<> put_file(Tree::Change& change, InodeNumber folder, const SaveFile& file);

  Store& store_;
  Tree& tree_;
  const SaveRequest& request_;
  const Credentials who_;
  SaveResult& result_;
  bool holds_swap_state_ = false;
  std::map<std::string, InodeNumber> folders_;      // by path in the step
  std::map<InodeNumber, InodeRecord> new_folders_;  // as they will be
  StepRecord step_record_;                          // likewise
};

}  // namespace ckptfs::meta
