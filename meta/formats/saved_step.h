// Reads steps that libckptfs saved: "rank00.safetensors" of each rank, with any tensor names. Tensors that are pieces
// of a whole (saved_piece.h) are joined under the whole's name. Any other tensor has its own name, and with several
// ranks its rank in front: "rank00/weight".
//
// A whole whose pieces overlap, leave a gap or disagree is a problem, in words, and is not in the map.
//
// Thread safety: stateless.
#pragma once

#include <optional>
#include <string_view>

#include "meta/formats/map_budget.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

// The rank of a file of tensors by its name, "rank00.safetensors"; nothing if it is another name.
std::optional<unsigned> rank_of_file(std::string_view path);
inline bool is_rank_file(std::string_view path) { return rank_of_file(path).has_value(); }
// Is it such a step? Then a manifest of a rank is there (manifest.h).
bool is_saved_step(const StepFiles& files);
TensorMap read_saved_step(const StepFiles& files, const MapOptions& options = {});

}  // namespace ckptfs::meta::formats
