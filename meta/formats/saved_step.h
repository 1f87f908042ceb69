// Reads steps that libckptfs saved: "rank00.safetensors" of each rank, with any tensor names. Tensors that are pieces
// of a whole are joined under the whole's name. Any other tensor has its own name, and with several ranks its rank in
// front: "rank00/weight".
//
// A tensor in a rank's safetensors file may be a piece of a whole that several ranks saved. Then the file's metadata
// has an entry for it: key "ckptfs.piece:NAME_IN_FILE", value {"of": "layers.0.weight", "shape": [4096, 1024],
// "offsets": [0, 512]}. The shape is the whole's; the piece's own shape is the tensor's. All pieces of one whole have
// the same `of`. A piece may be all of its whole: it is then read as `of`, and not by its rank and name.
//
// A whole whose pieces overlap, leave a gap or disagree is a problem, in words, and is not in the map.
//
// Thread safety: stateless.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "io/result.h"
#include "meta/formats/map_budget.h"
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

// The rank of a file of tensors by its name, "rank00.safetensors"; nothing if it is another name.
std::optional<unsigned> rank_of_file(std::string_view path);
inline bool is_rank_file(std::string_view path) { return rank_of_file(path).has_value(); }
// Is it such a step? Then a manifest of a rank is there (manifest.h).
bool is_saved_step(const StepFiles& files);
TensorMap read_saved_step(const StepFiles& files, const MapOptions& options = {});

}  // namespace ckptfs::meta::formats
