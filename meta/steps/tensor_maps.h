// Tensor maps of steps, kept in the index so that the headers of a step's files are read once for all mounts, and so
// that a step keeps the names that another step of its run told.
//
// Thread safety: all of it.
#pragma once

#include <optional>

#include "meta/formats/tensor_map.h"
#include "meta/store/store.h"

namespace ckptfs::meta {

// The map that was kept when `version` was what told the step's `files` files apart. None: there is none.
Result<std::optional<formats::TensorMap>> kept_map(const Store& store, InodeNumber step, const io::Digest& version,
                                                   size_t files);
// Keeps it, for as long as the step is there; not one that has problems, and none where the store is nearly full.
Result<> keep_map(Store& store, InodeNumber step, const io::Digest& version, const formats::TensorMap& map);

}  // namespace ckptfs::meta
