// Steps that are saved into piece by piece, by the ranks of a run, and appear when all is there (gpu/step_save.h).
// Until then what there is lies beside them, in TAG.ATTEMPT.partial: a step that is never complete. Nothing else makes
// it one: what was never committed is listed, and left to keep_partial.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "meta/store.h"

namespace ckptfs::meta {

// Makes the folder of an attempt (a second rank finds it made). `attempt`: one word, the same of all ranks. `series`
// becomes one, where it is none, or is a step, or lies in one: then TAG will be a part of that step, which is not
// complete as long as it is not there. EINVAL: a tag or an attempt that cannot be; EPERM: the step is there and sealed.
Result<InodeNumber> begin_partial(Store& store, InodeNumber series, const std::string& tag, const std::string& attempt,
                                  const Caller& caller);

// The files (regular, live, in one folder) become frozen, durably. EBUSY: one is open for writing. One that somebody
// can still write to without having it open (a descriptor handed out, a mapping) is frozen as a clone of what it is
// now.
Result<> freeze_files(Store& store, const std::vector<InodeNumber>& files);

// What the attempt holds becomes the step TAG beside it, in one durable change: files of these names that are there
// already are replaced. Then the step is sealed, if that is asked for (a part of a step is not). The caller has seen to it that all is there.
// EPERM: the step is sealed. EISDIR, ENOTDIR, ENOTEMPTY: a name is a folder's on one side. EBUSY: the step cannot be
// sealed, since somebody writes to it; it is there all the same.
struct Committed {
  InodeNumber step = 0;
  std::vector<Dropped> dropped;
};
Result<Committed> commit_partial(Store& store, InodeNumber partial, const std::string& tag, bool seal_it);

}  // namespace ckptfs::meta
