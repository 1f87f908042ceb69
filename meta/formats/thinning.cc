#include "meta/formats/thinning.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "io/json.h"
#include "meta/formats/saved_step.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";
constexpr uint64_t kThinnedFormat = 1;
constexpr size_t kMostFiles = size_t{1} << 17;  // in one of its lists
constexpr uint64_t kMostScalar = 1;             // of a tensor that is no weights, whatever its type
constexpr uint64_t kMostOfGenerator = 5056;     // bytes: the state of torch's largest one
constexpr io::JsonBounds kBounds{.bytes = kMostThinned, .values = io::kAnyNumber, .text = 1 << 16, .depth = 8};

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// A type that a view can cast to another.
bool is_float(Dtype dtype) { return dtype == Dtype::float32 || dtype == Dtype::float16 || dtype == Dtype::bfloat16; }

// "offloaded_tensors/rank00/0_6.tensor.swp"
bool is_swap_file(std::string_view path) {
  const bool offloaded =
      path.starts_with(std::string(kTensorsName) + '/') || path.starts_with(std::string(kParamsName) + '/');
  return offloaded && (parse_group_name(last_name(path)) || parse_param_name(last_name(path)));
}

// DeepSpeed's own files, in a step of its own or in the folder of one.
bool is_deepspeeds_own(std::string_view path) {
  const bool states = kind_of(path).states || parse_layer_name(path) || parse_expert_name(path);
  return is_swap_file(path) || (lies_at_top(path) && states);
}

bool is_dcp(std::string_view path) {
  const FileKind kind = kind_of(path);
  return kind.folders <= 1 && (kind.role == FileRole::dcp_metadata || kind.role == FileRole::dcp_data);
}

// What the map was made from.
struct Origin {
  std::string inner;  // the folder of DeepSpeed's step in a Trainer's, with its slash; may be empty
  bool dcp = false;
  bool saved_by_us = false;
  bool torch_weights = false;
};

// Is it known to be for a resume?
bool is_for_resume(std::string_view path, const Origin& from) {
  if (is_deepspeeds_own(path) || (from.dcp && is_dcp(path))) return true;
  if (!from.inner.empty() && path.starts_with(from.inner)) return is_deepspeeds_own(path.substr(from.inner.size()));
  if (!lies_at_top(path)) return false;
  const FileKind kind = kind_of(path);
  if (kind.role == FileRole::script || (kind.role == FileRole::inner_latest && !from.inner.empty())) return true;
  if (from.torch_weights && path == "pytorch_model.bin.index.json") return true;
  if (path == "pytorch_model_fsdp.bin") return true;  // beside the model that a Trainer saves
  return kind.is_resume_state() || (from.saved_by_us && kind.role == FileRole::rank_manifest);
}

// Is it a folder of a step in the step, in which DeepSpeed's files lie?
bool is_inner_file(std::string_view path) {
  const size_t slash = path.find('/');
  return slash != std::string_view::npos && inner_number(path.substr(0, slash)) &&
         is_deepspeeds_own(path.substr(slash + 1));
}

// Depth 1 is the manifest, 2 a list of files, 3 one of these.
class ThinnedReader : public io::JsonVisitor {
 public:
  bool string(string_t& text) override {
    if (depth_ == 1 && key_ == "from") manifest.from = text;
    if (depth_ == 1 && key_ == "type") manifest.type = text;
    if (depth_ == 3 && key_ == "name") file_.name = text;
    if (depth_ == 3 && key_ == "digest") file_.digest = text;
    return true;
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ == 1 && key_ == "format") format_ = number;
    if (depth_ == 1 && key_ == "thinned") manifest.thinned = static_cast<int64_t>(number);
    if (depth_ == 3 && key_ == "size") file_.size = number;
    return true;
  }

  Result<ThinnedManifest> take() {
    if (format_ != kThinnedFormat || manifest.kept.empty()) {
      return Error(EBADMSG, "it is no manifest of a thinned step, or of a format that this ckptfs does not know");
    }
    return std::move(manifest);
  }

  ThinnedManifest manifest;

 private:
  bool begin(bool object) override {
    if (depth_ == 1) return object || fails(Error(EBADMSG, "it is no object"));
    if (depth_ == 2)
      list_ = object ? nullptr : key_ == "kept" ? &manifest.kept : key_ == "went" ? &manifest.went : nullptr;
    if (depth_ == 3) file_ = {};
    return true;
  }
  bool end() override {
    if (depth_ != 3 || list_ == nullptr) return true;
    if (file_.name.empty()) return fails(Error(EBADMSG, "it names a file without a name"));
    if (list_->size() == kMostFiles) return fails(Error(EFBIG, "it names more files than any step has"));
    list_->push_back(std::move(file_));
    return true;
  }

  uint64_t format_ = 0;
  std::vector<ThinnedFile>* list_ = nullptr;
  ThinnedFile file_;
};

nlohmann::ordered_json to_json(const std::vector<ThinnedFile>& files) {
  auto rows = nlohmann::ordered_json::array();
  for (const ThinnedFile& file : files) {
    rows.push_back({{"name", file.name}, {"size", file.size}});
    if (!file.digest.empty()) rows.back()["digest"] = file.digest;
  }
  return rows;
}

}  // namespace

bool is_weights_name(const std::string& path) {
  return path == kWeightsIndexName || kind_of(path).role == FileRole::model_safetensors;
}

std::set<uint32_t> files_of(const TensorMap& map) {
  std::set<uint32_t> files;
  for (const Parameter& parameter : map.parameters) {
    for (const auto& [state, tensor] : parameter.states) {
      for (const Piece& piece : tensor.pieces) files.insert(piece.file);
    }
  }
  for (const SwapFile& swap : map.undivided) files.insert(swap.file);
  return files;
}

std::string weights_name(const TensorMap& map, const std::vector<StepFiles::File>& files) {
  const std::set<uint32_t> held = files_of(map);
  if (const auto adapter = index_of(files, kAdapterName); adapter && held.contains(*adapter)) return kAdapterName;
  if (held.size() != 1) return kWeightsName;
  const std::string& path = files[*held.begin()].path;
  const bool own = lies_at_top(path) && path.ends_with(kSafetensors) && !is_rank_file(path) && !is_weights_name(path);
  return own ? path : kWeightsName;
}

bool has_weights_files(const TensorMap& map, const std::vector<StepFiles::File>& files, std::optional<Dtype> type) {
  const std::string name = weights_name(map, files);
  return std::ranges::all_of(map.parameters, [&](const Parameter& parameter) {
    const auto state = parameter.states.find(kParam);
    if (parameter.states.size() != 1 || state == parameter.states.end()) return false;
    const Tensor& tensor = state->second;
    const bool stored = !type || !is_float(tensor.dtype) || tensor.dtype == *type;
    return stored && std::ranges::all_of(tensor.pieces, [&](const Piece& piece) {
             return is_weights_name(files[piece.file].path) || files[piece.file].path == name;
           });
  });
}

std::vector<uint32_t> files_that_go(const TensorMap& map, const std::vector<StepFiles::File>& files, bool stay) {
  const std::set<uint32_t> held = files_of(map);
  Origin from;
  for (const uint32_t index : held) {
    const std::string& path = files[index].path;
    if (is_inner_file(path)) from.inner = path.substr(0, path.find('/') + 1);
    from.dcp = from.dcp || is_dcp(path);
    from.saved_by_us = from.saved_by_us || is_rank_file(path);
    from.torch_weights = from.torch_weights || path.starts_with("pytorch_model");
  }
  const std::string name = weights_name(map, files);
  std::vector<uint32_t> going;
  for (uint32_t index = 0; index < files.size(); ++index) {
    const std::string& path = files[index].path;
    const bool weights = is_weights_name(path) || path == name;
    if (weights ? !stay : held.contains(index) || is_for_resume(path, from)) going.push_back(index);
  }
  return going;
}

// A model may be of any type, also of integers. So only what is known to be something else is none.
std::string unknown_weights(const TensorMap& map) {
  for (const Parameter& parameter : map.parameters) {
    if (parameter.kind != Parameter::Kind::other) continue;
    for (const auto& [state, tensor] : parameter.states) {
      const auto elements = elements_of(tensor.shape);
      const bool single = elements && *elements <= kMostScalar;
      const bool generator =
          tensor.dtype == Dtype::uint8 && tensor.shape.size() == 1 && tensor.shape.front() <= kMostOfGenerator;
      if (!single && !generator) return parameter.name;
    }
  }
  return {};
}

Result<std::string> thinned_text(const ThinnedManifest& manifest) {
  const nlohmann::ordered_json json = {{"format", kThinnedFormat},       {"from", manifest.from},
                                       {"type", manifest.type},          {"thinned", manifest.thinned},
                                       {"kept", to_json(manifest.kept)}, {"went", to_json(manifest.went)}};
  std::string text = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const bool fits = text.size() <= kMostThinned && manifest.went.size() <= kMostFiles;
  return fits ? Result<std::string>(std::move(text)) : Error(EINVAL, "it has more files than its manifest could name");
}

Result<ThinnedManifest> parse_thinned(const std::string& text) {
  ThinnedReader reader;
  TRY(io::read_json(text, kBounds, reader));
  return reader.take();
}

std::optional<ShareCheck> check_thinned(const StepFiles& files) {
  const auto index = index_of(files.list(), kThinnedName);
  if (!index) return std::nullopt;
  const auto text = files.read(*index, kMostThinned);
  const auto manifest = text ? parse_thinned(text.value()) : text.error();
  ShareCheck share;
  if (!manifest) {
    share.add_unclear(std::string(kThinnedName) + ": " + manifest.error().message());
    return share;
  }
  std::map<std::string_view, uint64_t> sizes;
  for (const StepFiles::File& file : files.list()) sizes.emplace(file.path, file.size);
  std::set<std::string_view> kept;
  for (const ThinnedFile& file : manifest.value().kept) kept.insert(file.name);
  for (const ThinnedFile& file : manifest.value().went) {
    if (sizes.contains(file.name) && !kept.contains(file.name)) return std::nullopt;
  }
  for (const ThinnedFile& file : manifest.value().kept) {
    const auto there = sizes.find(file.name);
    if (there == sizes.end()) {
      share.add_missing({file.name, file.size, file.size});
    } else if (there->second != file.size) {
      share.add_broken(file.name + ": it has " + std::to_string(there->second) + " bytes, and should have " +
                       std::to_string(file.size));
    }
  }
  return share;
}

}  // namespace ckptfs::meta::formats
