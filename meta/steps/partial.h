// Steps under another name than their own.
//   - Steps that are made piece by piece, by the ranks of a run (gpu/step_save.h) or by `ckptfs fetch`
//     (fs/cli/fetch.cc), and appear when all is there. Until then what there is lies beside them, in
//     partial-ATTEMPT-TAG: a step that is never complete. Nothing else makes it one: what was never committed is
//     listed, and left to keep_partial.
//   - Abandoned steps that were set aside, so that no program takes them for steps of a training. When that is done,
//   and
//     when not: fs/steps/set_aside.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "meta/store/store.h"

namespace ckptfs::meta {

// What becomes of a step of that name that is there already?
enum class Existing {
  merge,   // files of the same names are replaced; the step may be a part of another one
  refuse,  // EEXIST. The folder of an attempt is one user's alone, and the step lies in a series (EINVAL)
};

// Makes the folder of an attempt (a second rank finds it made). `attempt`: one word, the same of all ranks. `series`
// becomes one, where it is none, or is a step, or lies in one: then TAG will be a part of that step, which is not
// complete as long as it is not there. EINVAL: a tag or an attempt that cannot be; EPERM: the step is there and sealed.
Result<InodeNumber> begin_partial(Store& store, InodeNumber series, const std::string& tag, const std::string& attempt,
                                  const Caller& caller, Existing existing = Existing::merge);

// What the attempt holds becomes the step TAG beside it, in one change: files of these names that are there already are
// replaced. The caller has seen to it that all is there, and seals the step if it is to be (a part of a step is not).
// ENOENT: it is no attempt, or no more; EIO: a file is suspect; EPERM: the step is sealed, or another user's; EISDIR,
// ENOTDIR, ENOTEMPTY: a name is a folder's on one side.
struct Committed {
  InodeNumber step = 0;
  std::vector<Dropped> dropped;
  bool is_part = false;            // of a step
  std::optional<Error> problem{};  // it can be seen, but may not be durable
};
Result<Committed> commit_partial(Store& store, InodeNumber partial, const std::string& tag,
                                 Existing existing = Existing::merge);

// Renames the step `tag` of `series` to incomplete-TAG, or incomplete-2-TAG and so on where there is such a name
// already. Durable on return of the new name. It stays a step, also if it holds nothing. ENOENT: the name is another's.
Result<std::string> set_aside(Store& store, InodeNumber series, InodeNumber step, const std::string& tag);

}  // namespace ckptfs::meta
