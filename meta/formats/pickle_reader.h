// From the bytes of a pickle to its values, by the machine that Python's Lib/pickletools.py describes.
// Thread safety: all of it.
#pragma once

#include <string>

#include "io/result.h"
#include "meta/formats/pickle.h"

namespace ckptfs::meta::formats {

// EBADMSG, with the offset: it is none, is cut short, or is larger than the bounds.
Result<Pickle> read_pickle(std::string bytes);

}  // namespace ckptfs::meta::formats
