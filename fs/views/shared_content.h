// Makes a content out of the blocks of the step's files: a file without a name, which the kernel reads by itself, at
// the rate of the disk. The file takes no space, except for what cannot be shared. It ends with its last descriptor.
//
// A block can be shared if it begins at the same place within a block in the content as in the file. View pads the
// headers of models for that. The rest (headers, edges, casts) is copied.
//
// Stateless; any thread.
#pragma once

#include <functional>
#include <optional>

#include "fs/views/content.h"
#include "io/fd.h"

namespace ckptfs::fs::views {

inline constexpr uint64_t kLeastShared = uint64_t{1} << 20;  // bytes; the daemon reads less in the time to share it

// Returns a readable descriptor of a file of the step. The caller of share_content() keeps the descriptor open.
using PieceDescriptor = std::function<Result<int>(uint32_t file)>;

// Makes the file in `folder`, which must be on the file system of the step's files. None: too little can be shared. If
// a file of the step is written meanwhile, the result may hold half of that write. The caller must check for it.
Result<std::optional<io::Fd>> share_content(const Content& content, int folder, const PieceDescriptor& descriptor,
                                            const ReadPiece& read_piece);

// Likewise, into `file`, which is empty and writable. False: too little can be shared, and the file stays empty.
Result<bool> fill_with_shared(int file, const Content& content, const PieceDescriptor& descriptor,
                              const ReadPiece& read_piece);

}  // namespace ckptfs::fs::views
