// Files at the same place in steps of one series made one after the other, and whether they hold the same.
// Thread safety: all of it; what changes meanwhile may be seen as before or as after.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "meta/steps/steps.h"
#include "meta/store/store.h"

namespace ckptfs::meta {

// Where a file or a folder stands in a step.
struct Place {
  InodeNumber series = 0;
  InodeNumber step = 0;
  std::vector<std::string> path;  // names below the step, its own last; the step itself: none
};
// None: it neither is nor lies in a child directory of a series. A hard link's is where it was made or last renamed.
Result<std::optional<Place>> place_of(const Tree& tree, InodeNumber inode);
// The file there in another step; none where there is no regular file.
std::optional<InodeNumber> file_at(const Tree& tree, InodeNumber step, const std::vector<std::string>& path);

// Inode numbers ascend in the order in which directories are made. `runs` or `best_model` may be made between
// checkpoint-1 and checkpoint-2. So directories with a step's number in their name are told from all others.
//
// The directory that was made last before `before`, of those with a number (`numbered`) or of the others.
std::optional<InodeNumber> last_made_before(const std::vector<DirectoryEntry>& entries, InodeNumber before,
                                            bool numbered);

// The steps made just before and after `step` in its series, of those that have a number if it has one, else of the
// others.
struct NeighbourSteps {
  std::optional<InodeNumber> before;
  std::optional<InodeNumber> after;
};
Result<NeighbourSteps> neighbours(const Tree& tree, InodeNumber series, InodeNumber step);

// The step made before each step of a series that has one, as above. The series is read once.
Result<std::unordered_map<InodeNumber, InodeNumber>> steps_before(const Tree& tree, InodeNumber series);

enum class Sameness { same, different, unknown };
// As blobs and digests tell; nothing is read.
Result<Sameness> compare_files(const Store& store, InodeNumber a, InodeNumber b);

// Whether all tensors of `step` are, bit for bit, those of `before`: an optimizer that no longer changes anything. Of a
// DeepSpeed step with offloaded state that is its swap files; of any other, its safetensors and torch files.
// `different` where it has none.
Result<Sameness> compare_tensors(const Store& store, InodeNumber step, InodeNumber before);

// The steps whose tensors are those of the step made before them, of one user only: nobody must learn what another
// user's step holds. Each series is read once.
struct IdenticalStep {
  StepInfo step;
  InodeNumber before = 0;
};
Result<std::vector<IdenticalStep>> identical_steps(Store& store);

}  // namespace ckptfs::meta
