// Which directories are steps, and which are series: told by what the tree holds, and recorded in it as names come.
// Thread safety: all of it; what changes meanwhile may be seen as before or as after.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "meta/tree/tree.h"

namespace ckptfs::meta {

inline constexpr size_t kDeepestStep = 256;  // folders in each other: who walks them calls itself for each

// What somebody said of the steps of a series that nothing tells by itself (the rules `steps` and `complete_when`).
struct DeclaredSteps {
  std::string names;          // a glob for the names of folders; empty: they are told as in other series
  std::string complete_when;  // meta/steps/policy.h; empty: told by their files, as in other series
};
inline constexpr const char* kDeclaredXattr = "user.ckptfs.declared";  // of a series
std::string text_of(const DeclaredSteps& declared);
// Empty where nothing is declared.
Result<DeclaredSteps> declared_steps(const Tree& tree, InodeNumber series);
// Calls `enter` for each folder below this one; false: not for those below that one. What is removed meanwhile, or lies
// deeper than any step, is left out.
Result<> visit_folders(const Tree& tree, InodeNumber folder,
                       const std::function<bool(InodeNumber, const InodeRecord&)>& enter, size_t depth = 0);
// May a folder of that name in the series become a step?
Result<bool> may_be_step(const Tree& tree, InodeNumber series, const std::string& name);

// The directory's own name; the root has none.
std::string name_of(const Tree& tree, InodeNumber directory);
// True for a child directory of a series that save, seal or pin made a step, or that has a step's name and holds a
// recognised checkpoint file; in a series with a remote any file, since a machine of several may have few of a step. A
// child whose name is declared is a step, whatever is in it.
Result<bool> is_step(const Tree& tree, InodeNumber directory);
// Of one whose name is known: quicker.
Result<bool> is_step(const Tree& tree, InodeNumber directory, const std::string& name);
// By what is in a step: "swap state only", "deepspeed", "hf", "dcp", "ckptfs", "other".
inline constexpr const char* kSwapStateOnly = "swap state only";
std::string checkpoint_kind(const std::vector<DirectoryEntry>& entries);
// Is the directory a step of a series, or below one?
Result<bool> is_in_step(const Tree& tree, InodeNumber directory);
// EINVAL, in words: the root, a zero_stage_N folder and what lies in a step cannot be a series.
Result<> check_series(const Tree& tree, InodeNumber directory);
// Every series of the mount.
Result<std::vector<InodeNumber>> list_series(const Tree& tree);
// Every zero_stage_N folder of the mount.
Result<std::vector<InodeNumber>> list_swap_folders(const Tree& tree);

// `folder` now has `entry`. Where that makes it a step, its parent is a series from now on, unless that is the root or
// lies in a step. What fails is logged: a series that is not noted now is with the next file of a step.
void note_entry(Tree& tree, InodeNumber folder, const DirectoryEntry& entry);
// A directory was given another name or place: as above.
void note_directory(Tree& tree, InodeNumber directory);

}  // namespace ckptfs::meta
