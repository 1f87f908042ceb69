// Which zero_stage_N folder a series' saves take.
#pragma once

#include <vector>

#include "meta/store/store.h"
#include "meta/tree/access.h"

namespace ckptfs::meta {

// The zero_stage_N folder that saves into `series` take for `who`: its `source`, else the only one that belongs to
// `who`, else the only one of all that `who` may read and write to. Errors name no folder that `who` cannot reach.
Result<InodeNumber> save_source(Store& store, InodeNumber series, const Credentials& who);
// Every zero_stage_N folder of the mount.
Result<std::vector<InodeNumber>> list_swap_folders(const Tree& tree);
// Makes the directory a series (not the root, a zero_stage_N, or what lies in a step: EINVAL) and sets its source.
// Whether its setter may use that source each save asks.
Result<> set_source(Store& store, InodeNumber series, InodeNumber source);

}  // namespace ckptfs::meta
