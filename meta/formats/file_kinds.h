// The table of kinds: what a file of a step is, told by its path in the step. Whoever asks what a file means (is the
// folder a step, is the step whole, what goes with a thinning, what is a note, who may know names) asks here. A new
// layout is some rows in file_kinds.cc, a reader (checkpoint.h) and a judge (step_names.h). Stateless.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meta/formats/deepspeed_files.h"

namespace ckptfs::meta::formats {

inline constexpr const char* kAdapterName = "adapter_model.safetensors";  // PEFT's
inline constexpr const char* kThinnedName = "ckptfs-thinned.json";        // meta/formats/thinning.h

enum class FileRole : uint8_t {
  other,           // not known here: it may be anything, also weights
  note,            // no resume reads it: an evaluation's results, a README, what the Hub's client keeps (.cache/)
  config,          // a note: config.json
  adapter_config,  // likewise
  temporary,       // safetensors writes ".tmpAb12Cd" first, and renames it
  // Each of these alone says what the step is.
  trainer_state,  // a Trainer writes it last
  thinned,        // the manifest of a thinning
  model_states,   // DeepSpeed's
  optim_states,
  other_states,  // likewise, of experts and of a pipeline's layers
  dcp_metadata,
  rank_manifest,  // of a rank that saved through libckptfs
  // A Trainer's or accelerate's.
  arguments,     // training_args.bin: with each model that a Trainer saves
  lightning,     // meta.pt: Lightning writes it after DCP's .metadata
  inner_latest,  // names DeepSpeed's folder in a Trainer's step
  optimizer,     // for a resume only, as are the next ones
  scheduler,
  rng_state,
  random_states,  // accelerate's: each rank writes its own last
  other_resume,   // scaler, sampler, what the user has accelerate save
  // DeepSpeed's and DCP's that do not stand alone.
  script,             // zero_to_fp32.py
  swap_file,          // of an offloaded state
  dcp_rank_metadata,  // some writers name it "__0.metadata"
  dcp_data,
  rank_pickle,  // what a rank holds of a model, of its optimizer, or of the rest (meta/formats/rank_pickles.h)
  // Weights of a model, the best first: the first of them that a step has is what it was saved as; what else there is
  // was made of it. As transformers and peft name them, in one file or in shards.
  adapter_safetensors,
  adapter_bin,
  model_safetensors,
  model_bin,
  weights_index,
  other_safetensors,
  other_weights,
  count
};

using FileRoles = std::bitset<static_cast<size_t>(FileRole::count)>;

struct FileKind {
  FileRole role = FileRole::other;
  size_t folders = 0;  // how deep it lies in the step; 0: at its top
  std::optional<StatesName> states = {};
  bool is_note() const { return role >= FileRole::note && role <= FileRole::adapter_config; }
  // Does it make a folder with a step's name a step? The weights of a model do only beside its config.
  bool is_sign(bool beside_config) const;
  // Is it a Trainer's or accelerate's, and for a resume only?
  bool is_resume_state() const { return role >= FileRole::optimizer && role <= FileRole::other_resume; }
  bool is_first_model_states() const {
    return role == FileRole::model_states && states->rank.value_or(0) == 0 && states->model_rank == 0;
  }
  // Do names of tensors stand in it, also of some that lie in other files?
  bool tells_names() const;
  // Does its name say that it holds weights, or what they are made from?
  bool holds_weights() const;
  // May it hold weights? Of what is not known here nobody can tell.
  bool may_hold_weights() const;
};

FileKind kind_of(std::string_view path);
inline bool lies_at_top(std::string_view path) { return path.find('/') == path.npos; }
// No resume reads it, and it says nothing of when the step was saved.
inline bool is_note(std::string_view path) { return kind_of(path).is_note(); }
// Of the signs, and of what a model needs beside it, those that have one name only.
std::vector<std::string> sign_names();
// Likewise of a folder in it: "pytorch_model_fsdp_0" (accelerate), "model_and_optim" (OLMo-core), ...
bool is_sign_folder(std::string_view name);
// verl's: this folder and this file, which it writes last, make it a step together.
inline constexpr std::string_view kVerlFolder = "actor", kVerlFile = "data.pt";
// What `ckptfs ls` calls a step that holds such files at its top: "deepspeed", "hf", "dcp", ...; null: nothing tells.
const char* name_of_kind(const FileRoles& roles);

}  // namespace ckptfs::meta::formats
