// Thinning: of a step only the weights stay. Decides which files go, and reads and writes the manifest that tells of
// it.
//
// What goes is only what is known to be for a resume (optimizer, scheduler, random numbers), or to hold tensors that
// the weights are made from. Every other file stays, whatever it is.
//
// The manifest "ckptfs-thinned.json" makes a step one of weights. So a copy of the step is one, too. It does not, if a
// file that it says is gone is there again, for example because somebody copied the manifest into a whole step.
//
// Format: {"format": 1, "from": "deepspeed", "type": "bf16", "thinned": 1700000000,
//          "kept": [{"name": ..., "size": ..., "digest": ...}], "went": [likewise]}
//
// Thread safety: stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/result.h"
#include "meta/formats/completeness_judgement.h"
#include "meta/formats/file_kinds.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

inline constexpr const char* kWeightsName = "model.safetensors";
inline constexpr const char* kWeightsIndexName = "model.safetensors.index.json";

// A file of weights as transformers names it, at the top of the step: "model.safetensors",
// "model-00001-of-00002.safetensors", "model.safetensors.index.json".
bool is_weights_name(const std::string& path);

// The name of the file of weights, if it is one: its own if the weights lie in one safetensors file already
// ("adapter_model.safetensors" of PEFT), else "model.safetensors".
std::string weights_name(const TensorMap& map, const std::vector<StepFiles::File>& files);

// The files that hold anything of the map, by their index in StepFiles::list().
std::set<uint32_t> files_of(const TensorMap& map);

// Are the weights of the map in files that transformers reads, in this type (none: whatever their types)? Then these
// files can stay as they are.
bool has_weights_files(const TensorMap& map, const std::vector<StepFiles::File>& files, std::optional<Dtype> type);

// The files that go, ascending. `stay`: files of weights stay as they are.
std::vector<uint32_t> files_that_go(const TensorMap& map, const std::vector<StepFiles::File>& files, bool stay);

// A tensor that is neither weights nor a state known to be for a resume, and that may be somebody's weights; empty:
// there is none.
std::string unknown_weights(const TensorMap& map);

inline constexpr uint64_t kMostThinned = uint64_t{16} << 20;  // bytes of a manifest

struct ThinnedFile {
  std::string name;  // the path below the step
  uint64_t size = 0;
  std::string digest;  // in hexadecimal (meta/care/digests.h); empty: not known
};

struct ThinnedManifest {
  std::string from;     // kind of the step, as `ckptfs ls` told it
  std::string type;     // "bf16"
  int64_t thinned = 0;  // seconds since 1970
  std::vector<ThinnedFile> kept;
  std::vector<ThinnedFile> went;
};

// EINVAL: it is about too many files.
Result<std::string> thinned_text(const ThinnedManifest& manifest);
// EBADMSG or EFBIG, in words.
Result<ThinnedManifest> parse_thinned(const std::string& text);

// Whether the files that the manifest says were kept are there, as if other machines had those that are not here. None:
// the step has no manifest, or another step's.
std::optional<ShareCheck> check_thinned(const StepFiles& files);

}  // namespace ckptfs::meta::formats
