// A tensor in a rank's safetensors file may be a piece of a whole that several ranks saved. Then the file's metadata
// has an entry for it: key "ckptfs.piece:NAME_IN_FILE", value {"of": "layers.0.weight", "shape": [4096, 1024],
// "offsets": [0, 512]}. The shape is the whole's; the piece's own shape is the tensor's. All pieces of one whole have
// the same `of`. A piece may be all of its whole: it is then read as `of`, and not by its rank and name.
//
// Thread safety: stateless.
#pragma once

#include <string>
#include <string_view>

#include "io/result.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

inline constexpr std::string_view kPieceKey = "ckptfs.piece:";

struct SavedPiece {
  std::string of;  // name of the whole
  Shape shape;     // of the whole
  Shape offsets;   // where the piece begins in it
};

std::string piece_text(const SavedPiece& piece);
// Fails with EBADMSG or EFBIG, in words.
Result<SavedPiece> parse_piece(const std::string& text);

}  // namespace ckptfs::meta::formats
