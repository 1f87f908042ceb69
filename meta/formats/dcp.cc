#include "meta/formats/dcp.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "meta/formats/assembly.h"
#include "meta/formats/box.h"
#include "meta/formats/file_kinds.h"
#include "meta/formats/pickle_access.h"
#include "meta/formats/state_dict.h"
#include "meta/formats/torch_file.h"

namespace ckptfs::meta::formats {
namespace {

using Value = Pickle::Value;

// Limits for one step.
constexpr size_t kMostFolders = 16;
constexpr size_t kMostKeys = 64;                          // on the way to a tensor
constexpr uint64_t kMostChunkPickle = uint64_t{1} << 20;  // bytes: it describes a single tensor

Error bad(const std::string& what) { return Error(EBADMSG, what); }

// One folder of a DCP checkpoint, as described by its ".metadata".
class Folder {
 public:
  // `budget` counts for the whole step.
  Folder(const StepFiles& files, uint32_t metadata, MapBudget& budget)
      : files_(files), metadata_(metadata), budget_(budget) {
    const std::string& path = files.list()[metadata].path;
    folder_ = path.substr(0, path.rfind('/') + 1);
    for (uint32_t index = 0; index < files.list().size(); ++index) {
      const std::string_view other = files.list()[index].path;
      if (!other.starts_with(folder_)) continue;
      indices_.emplace(other.substr(folder_.size()), index);
      unread_ += files.list()[index].size;
    }
  }

  void read(std::vector<SavedTensor>& saved, std::vector<Problem>& problems) {
    const auto problem = [&](const std::string& reason, Problem::Kind kind = Problem::Kind::unreadable,
                             bool absent = false) {
      if (problems.size() < kMostProblems) problems.push_back({files_.list()[metadata_].path, reason, kind, absent});
    };
    auto pickle = read_metadata();
    if (!pickle) return problem(pickle.error().message());
    const auto metadata = pickle.value().root().state();
    const auto tensors = field(metadata, "state_dict_metadata");
    if (!tensors) problem("it does not tell what was saved");
    for (const std::string& path : lacks_of_megatron(metadata)) {
      problem(path + " is not there", Problem::Kind::missing, true);
    }
    if (!find_chunks(field(metadata, "storage_data"))) return problem(kTooManyTensors);
    for (const std::string_view path : absent_) {
      problem(std::string(path) + " is not there", Problem::Kind::missing, true);
    }
    const auto keys = by_name(field(metadata, "planner_data"));
    for (size_t at = 0; tensors && at < tensors->pairs(); ++at) {
      const auto [key, value] = tensors->pair(at);
      if (!key.text() || !value.name().ends_with(".TensorStorageMetadata")) continue;
      const auto name = short_text(key);
      if (!name) {
        problem("a tensor whose name is too long");
        continue;
      }
      auto tensor = this->tensor(*name, value.state());
      if (!tensor) {
        const int failed = tensor.error().errno_value();
        const bool missing = failed == ENOENT || failed == ENODATA;
        problem(std::string(*name) + ": " + tensor.error().message(),
                missing ? Problem::Kind::missing : Problem::Kind::unreadable, failed == ENOENT);
        continue;
      }
      const auto known = keys.find(*name);
      auto path = known == keys.end() ? std::nullopt : keys_of(known->second);
      SavedTensor one{folder_, {}, path ? *std::move(path) : Keys{std::string(*name)}, std::move(tensor).value()};
      if (budget_.options().saved_names) one.name = *name;
      if (!has_room(one)) return problem(kTooManyTensors);
      saved.push_back(std::move(one));
    }
  }

  // Compares the folder's files with what the metadata demands.
  void check(ShareCheck& share) {
    const auto pickle = read_metadata();
    if (!pickle) return share.add_unclear(files_.list()[metadata_].path + ": " + pickle.error().message());
    for (std::string& path : lacks_of_megatron(pickle.value().root().state())) share.add_missing({std::move(path)});
    for (const auto& [path, end] : ends_of(field(pickle.value().root().state(), "storage_data"))) {
      const auto index = indices_.find(path);
      if (index == indices_.end()) {
        share.add_missing({folder_ + std::string(path), end});
      } else if (files_.list()[index->second].size < end) {
        share.add_broken(files_.list()[index->second].path + " is shorter than it should be");
      }
    }
  }

  // Asked after one of the others.
  bool is_megatrons() const { return megatron_; }

 private:
  // Megatron's own planner leaves no keys, and numbers what is no tensor ("rng_state/shard_0_1"). Beside .metadata it
  // writes two files, without which it loads nothing. Source: megatron/core/dist_checkpointing/serialization.py.
  std::vector<std::string> lacks_of_megatron(const std::optional<Value>& metadata) {
    const auto told = field(metadata, "state_dict_metadata"), keys = field(metadata, "planner_data");
    for (size_t at = 0; told && (!keys || keys->is_none()) && at < told->pairs() && !megatron_; ++at) {
      const auto [key, value] = told->pair(at);
      const auto name = short_text(key);
      megatron_ = name && is_megatrons(*name, value);
    }
    std::vector<std::string> lacks;
    for (const char* const name : {"common.pt", "metadata.json"}) {
      if (megatron_ && !indices_.contains(name)) lacks.push_back(folder_ + name);
    }
    return lacks;
  }

  static bool is_megatrons(std::string_view name, const Value& value) {
    if (value.name().ends_with(".BytesStorageMetadata")) {
      return name.substr(name.rfind('/') + 1).starts_with("shard_") && name.find('/') != name.npos;
    }
    return is_megatron_state(name);
  }

  Result<Pickle> read_metadata() const {
    TRY_ASSIGN(auto bytes, files_.read(metadata_, Pickle::kMostBytes));
    return read_pickle(std::move(bytes));
  }

  // Returns the length that each file must have at least.
  static std::map<std::string_view, uint64_t> ends_of(const std::optional<Value>& stored) {
    std::map<std::string_view, uint64_t> ends;
    for (size_t at = 0; stored && at < stored->pairs(); ++at) {
      const auto where = stored->pair(at).second.state();
      const auto path = short_text(field(where, "relative_path"));
      if (!path) continue;
      const auto offset = number_of(field(where, "offset")).value_or(0);
      const auto length = number_of(field(where, "length")).value_or(0);
      uint64_t& end = ends[*path];
      if (offset < 0 || length < 0) continue;  // the reader of tensors reports it
      end = std::max(end, static_cast<uint64_t>(offset) + static_cast<uint64_t>(length));
    }
    return ends;
  }

  // Identifies a chunk: the name of its tensor, and its offsets.
  struct ChunkName {
    std::string_view tensor;
    Shape offsets;
    auto operator<=>(const ChunkName&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
  };

  // Counts the tensor twice: as it is here, and as the parameter that it becomes.
  bool has_room(const SavedTensor& saved) {
    uint64_t bytes = sizeof(SavedTensor) + sizeof(Parameter) + 2 * saved.name.size();
    for (const std::string& key : saved.keys) bytes += sizeof(std::string) + 2 * key.size();
    return budget_.take(bytes) && budget_.take(saved.tensor);
  }

  // Returns nothing if there are none, or if they are more, or longer, than in any state dict.
  static std::optional<Keys> keys_of(const Value& value) {
    Keys keys;
    size_t length = 0;
    if (value.size() == 0 || value.size() > kMostKeys) return std::nullopt;
    for (size_t at = 0; at < value.size(); ++at) {
      const Value key = value[at];
      length += key.text().value_or("").size();
      if (length > kLongestName) return std::nullopt;
      keys.push_back(key.text() ? std::string(*key.text()) : std::to_string(key.integer().value_or(0)));
    }
    return keys;
  }

  // Returns false if the budget does not allow so many chunks.
  bool find_chunks(const std::optional<Value>& stored) {
    for (size_t at = 0; stored && at < stored->pairs(); ++at) {
      const auto [key, where] = stored->pair(at);
      const auto path = short_text(field(where.state(), "relative_path"));
      if (path && !indices_.contains(*path) && absent_.size() < kMostProblems) absent_.insert(*path);
      const auto name = short_text(field(key.state(), "fqn"));
      const auto offset = field(key.state(), "offset");
      const auto offsets = name && offset && !offset->is_none() ? shape_of(*offset) : std::nullopt;
      if (!offsets) continue;
      constexpr uint64_t of_entry = 128;
      if (!budget_.take(of_entry + offsets->size() * sizeof(uint64_t))) return false;
      chunks_.emplace(ChunkName{*name, *offsets}, where);
    }
    return true;
  }

  Result<Tensor> tensor(std::string_view name, const std::optional<Value>& told) {
    const auto size = field(told, "size"), properties = field(told, "properties"), chunks = field(told, "chunks");
    const auto shape = size ? shape_of(*size) : std::nullopt;
    const auto settings = properties ? properties->state() : std::nullopt;
    if (!shape || !chunks || !settings || settings->size() == 0) return bad("it does not tell shape, type and chunks");
    const std::string type = (*settings)[0].name();
    const auto dtype = dtype_of_torch(type);
    if (!dtype) return Error(ENOTSUP, "of the type " + type + ", which is not known");
    std::vector<PlacedBox> boxes;
    for (size_t at = 0; at < chunks->size(); ++at) {
      TRY_ASSIGN(Box chunk, chunk_of((*chunks)[at], *shape));
      if (!budget_.take_runs(1)) return Error(ENOTSUP, kTooManyRuns);
      if (*elements_of(chunk.sizes) == 0) continue;
      TRY_ASSIGN(const Piece place, placed(name, chunk, *dtype));
      boxes.push_back({std::move(chunk), place});
    }
    return assembled(*dtype, *shape, std::move(boxes), budget_);
  }

  static Result<Box> chunk_of(const Value& value, const Shape& shape) {
    const auto offset = field(value.state(), "offsets"), size = field(value.state(), "sizes");
    const auto offsets = offset ? shape_of(*offset) : std::nullopt, sizes = size ? shape_of(*size) : std::nullopt;
    if (!offsets || !sizes) return bad("a chunk without a place");
    Box chunk{*offsets, *sizes};
    if (!lies_within(chunk, shape)) return bad("a chunk lies outside it");
    return chunk;
  }

  // Returns where the chunk's elements are in the file. Checks that the torch.save data there holds exactly this
  // tensor.
  Result<Piece> placed(std::string_view name, const Box& chunk, Dtype dtype) {
    const auto known = chunks_.find(ChunkName{name, chunk.offsets});
    if (known == chunks_.end()) return bad("it does not tell where a chunk lies");
    const auto where = known->second.state();
    const auto path = short_text(field(where, "relative_path"));
    const auto offset = field(where, "offset"), length = field(where, "length");
    const auto transforms = field(where, "transform_descriptors");
    if (transforms && !transforms->is_none()) return Error(ENOTSUP, "it was compressed or changed by an extension");
    const bool told = path && offset && length && offset->integer() && length->integer();
    if (!told || *offset->integer() < 0 || *length->integer() < 0) return bad("it does not tell where a chunk lies");
    const auto index = indices_.find(*path);
    if (index == indices_.end()) return Error(ENOENT, std::string(*path) + " is not there");
    const FileRange part{static_cast<uint64_t>(*offset->integer()), static_cast<uint64_t>(*length->integer())};
    const uint64_t whole = files_.list()[index->second].size;
    if (part.offset > whole || part.size > whole - part.offset) {
      return Error(ENODATA, std::string(*path) + " is shorter than it should be");
    }
    if (part.size > unread_) return bad("its chunks lie upon each other");
    unread_ -= part.size;
    TRY_ASSIGN(const auto descriptor, opened(index->second));
    TRY_ASSIGN(auto file, TorchFile::open(descriptor, part, kMostChunkPickle));
    TRY_ASSIGN(const auto tensor, TorchFile::tensor(file.root()));
    if (!tensor || tensor->dtype != dtype || tensor->shape != chunk.sizes) return bad("a chunk is another tensor");
    TRY_ASSIGN(const FileRange range, file.range(*tensor));
    return Piece{index->second, range.offset, range.size};
  }

  // The last file stays open, because consecutive chunks are mostly in the same file, and a file has many.
  Result<io::LimitedFile> opened(uint32_t index) {
    if (!last_ || last_index_ != index) {
      TRY_ASSIGN(last_, files_.open(index));
      last_index_ = index;
    }
    return files_.limited(last_);
  }

  const StepFiles& files_;
  const uint32_t metadata_;
  std::string folder_;
  std::map<std::string_view, uint32_t> indices_;  // the folder's files, by their paths within it
  std::map<ChunkName, Value> chunks_;
  std::set<std::string_view> absent_;  // files that the metadata names and that do not exist
  MapBudget& budget_;
  bool megatron_ = false;
  uint64_t unread_ = 0;  // bytes of the folder's files that no chunk has been read from; limits chunks that overlap
  io::ReadableFile last_;
  uint32_t last_index_ = 0;
};

// Megatron stacks the layers: "decoder.layers.mlp.linear_fc1.weight" has the number of layers as its first length.
// Returns the place of the number that the model's own name has there; none: it is not stacked.
size_t place_of_layer(std::string_view name) {
  constexpr std::string_view key = ".layers.";
  const size_t found = name.find(key);
  if (found == name.npos || found + key.size() == name.size()) return name.npos;
  const char next = name[found + key.size()];
  return next >= '0' && next <= '9' ? name.npos : found + key.size();
}

// A norm that Transformer Engine computes with the layer behind it is saved by that layer's name, also if the model has
// it by itself. Source: megatron/core/transformer/transformer_layer.py, sharded_state_dict_keys_map.
std::optional<std::string> norm_by_itself(const std::string& name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kNorms{
      {{"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
       {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."}}};
  for (const auto& [fused, alone] : kNorms) {
    const size_t at = name.find(fused);
    if (at != name.npos) return name.substr(0, at) + std::string(alone) + name.substr(at + fused.size());
  }
  return std::nullopt;
}

// Adds a parameter for each layer of one that is stacked.
Result<> add_layers(const Parameter& stacked, size_t place, MapBudget& budget, std::vector<Parameter>& parameters) {
  const size_t first = parameters.size();
  for (const auto& [state, tensor] : stacked.states) {
    TRY_ASSIGN(auto rows, rows_of(tensor, budget));
    for (size_t layer = 0; layer < rows.size(); ++layer) {
      if (first + layer == parameters.size()) {
        parameters.push_back({stacked.name, stacked.kind, std::nullopt, {}});
        parameters.back().name.insert(place, std::to_string(layer) + ".");
        if (!budget.take(parameters.back())) return Error(ENOTSUP, kTooManyTensors);
      }
      parameters[first + layer].states.emplace(state, std::move(rows[layer]));
    }
  }
  return success();
}

// Gives the model's own names to what Megatron has stacked.
void cut_layers(TensorMap& map, MapBudget& budget) {
  std::vector<Parameter> parameters;
  for (Parameter& parameter : std::exchange(map.parameters, {})) {
    const size_t place = place_of_layer(parameter.name);
    const Shape shape = parameter.states.begin()->second.shape;
    const bool alike =
        std::ranges::all_of(parameter.states, [&](const auto& one) { return one.second.shape == shape; });
    if (place == std::string::npos || shape.empty() || !alike || parameter.kind != Parameter::Kind::trained) {
      parameters.push_back(std::move(parameter));
      continue;
    }
    if (parameter.name.find(".experts.") != std::string::npos) {
      add_problem(map, {"", parameter.name + " holds all experts, which are not cut", Problem::Kind::left_out});
    }
    const auto added = add_layers(parameter, place, budget, parameters);
    if (!added) return add_problem(map, {"", added.error().message()});
  }
  std::set<std::string_view> names;
  for (const Parameter& parameter : parameters) {
    auto second = norm_by_itself(parameter.name);
    if (!names.insert(parameter.name).second) add_problem(map, {"", parameter.name + " is there twice"});
    if (second && budget.take(sizeof(Tied) + 2 * second->size()))
      map.tied.push_back({*std::move(second), parameter.name});
  }
  map.parameters = std::move(parameters);
}

// Returns the ".metadata" of the step and of its subfolders, but at most one more than are read.
std::vector<uint32_t> find_metadata(const StepFiles& files) {
  std::vector<uint32_t> found;
  for (uint32_t index = 0; index < files.list().size() && found.size() <= kMostFolders; ++index) {
    const FileKind kind = kind_of(files.list()[index].path);
    if (kind.role == FileRole::dcp_metadata && kind.folders <= 1) found.push_back(index);
  }
  return found;
}

}  // namespace

ShareCheck check_dcp(const StepFiles& files) {
  ShareCheck share;
  MapBudget budget;
  const std::vector<uint32_t> folders = find_metadata(files);
  for (size_t at = 0; at < std::min(folders.size(), kMostFolders); ++at)
    Folder(files, folders[at], budget).check(share);
  return share;
}

TensorMap read_dcp(const StepFiles& files, const MapOptions& options) {
  std::vector<SavedTensor> saved;
  std::vector<Problem> problems;
  bool megatron = false;
  MapBudget budget(options);
  const std::vector<uint32_t> folders = find_metadata(files);
  for (size_t at = 0; at < std::min(folders.size(), kMostFolders); ++at) {
    Folder folder(files, folders[at], budget);
    folder.read(saved, problems);
    megatron = megatron || folder.is_megatrons();
  }
  if (folders.size() > kMostFolders) problems.push_back({files.list()[folders.back()].path, "it is one of too many"});
  TensorMap map = options.saved_names ? by_saved_name(std::move(saved), folders.size() > 1)
                                      : by_parameter(std::move(saved), megatron);
  if (megatron && !options.saved_names) cut_layers(map, budget);
  for (Problem& problem : problems) add_problem(map, std::move(problem));
  return map;
}

}  // namespace ckptfs::meta::formats
