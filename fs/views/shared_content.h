// A content made of the blocks of the step's files: a file without a name that the kernel reads by itself, at the rate
// of the disk. It takes no space but for what cannot be shared, and goes with its last descriptor.
//
// A block can be shared where it begins at the same place within a block of the content and of the file; View pads the
// headers of models so that it does. The rest (headers, edges, casts) is copied.
//
// Stateless; any thread.
#pragma once

#include <functional>
#include <optional>

#include "fs/views/content.h"
#include "io/fd.h"

namespace ckptfs::fs::views {

inline constexpr uint64_t kLeastShared = uint64_t{1} << 20;  // bytes; less the daemon has read before it is made

// The descriptor, readable, of a file of the step; the step's owner keeps it.
using PieceDescriptor = std::function<Result<int>(uint32_t file)>;

// In `folder`, of the file system that the step's files lie in. None: too little of it can be shared to be worth it.
// What is being written meanwhile may be taken over half: the caller looks whether it was.
Result<std::optional<io::Fd>> share_content(const Content& content, int folder, const PieceDescriptor& descriptor,
                                            const ReadPiece& read_piece);

}  // namespace ckptfs::fs::views
