#include "fs/views/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "io/digest.h"
#include "meta/formats/file_kinds.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/thinning.h"

namespace ckptfs::fs::views {
namespace {

using meta::formats::Parameter;
using meta::formats::SafetensorsHeader;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLargestShard = 5'000'000'000;  // transformers' default, "5GB"
constexpr size_t kLongestName = 200;               // of a file
constexpr size_t kMostNodes = size_t{1} << 20;
constexpr const char* kModel = "model";
constexpr uint64_t kSharedBlock = 4096;   // of most file systems
constexpr uint64_t kTensorAlignment = 8;  // safetensors

std::string bytes_of(const io::Digest& digest) { return {reinterpret_cast<const char*>(digest.data()), digest.size()}; }

// The hash must be a good one: whoever names parameters must not be able to make them collide.
NodeNumber hash_of(const std::string& version, const std::string& path, unsigned attempt) {
  const std::string text = version + '\0' + path + '\0' + std::to_string(attempt);
  const io::Digest digest = io::digest_of(std::as_bytes(std::span(text)));
  NodeNumber number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return number & ((NodeNumber{1} << kNodeBits) - 1);
}

uint64_t bytes_of(const Tensor& tensor, Dtype as) {
  return meta::formats::elements_of(tensor.shape).value_or(0) * size_of(as);
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// The path of a tensor's file in the view.
std::string path_of(const std::string& parameter, const std::string& state) {
  return "by_name/" + file_name_of(parameter) + '/' + file_name_of(state);
}

// The access of those who may read both. If the owners differ, only root is sure to be one of those.
Access both(const Access& a, const Access& b) {
  Access common = a;
  common.mode &= b.mode;
  if (a.uid == b.uid && a.gid == b.gid) return common;
  return {0, 0, common.mode == 0444 && (b.mode & 0444) == 0444 ? 0444U : 0400U};
}

// A piece is [index of the file, offset, bytes].
Json described(const Parameter& parameter, const std::string& state, const Tensor& tensor) {
  Json pieces = Json::array();
  for (const Piece& piece : tensor.pieces) pieces.push_back({piece.file, piece.offset, piece.size});
  Json entry = {{"name", parameter.name},
                {"state", state},
                {"path", path_of(parameter.name, state)},
                {"dtype", torch_name(tensor.dtype)},
                {"shape", tensor.shape},
                {"pieces", std::move(pieces)}};
  if (parameter.ds_id) entry["ds_id"] = *parameter.ds_id;
  return entry;
}

// Where within a block the data of a safetensors file should begin. Chosen so that most bytes lie at the same place
// within a block as in the files that they come from. Then blocks can be shared (shared_content.h).
class DataBegin {
 public:
  // The piece will lie at `position` of the data.
  void add(const Piece& piece, uint64_t position) {
    const uint64_t begin = (piece.offset - position) % kSharedBlock;
    if (begin % kTensorAlignment == 0) bytes_[begin] += piece.size;
  }
  uint64_t best() const {
    const auto most = std::max_element(bytes_.begin(), bytes_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == bytes_.end() ? 0 : most->first;
  }

 private:
  std::map<uint64_t, uint64_t> bytes_;  // by where the data begin: how many would lie at the same place
};

// "model.bf16", 0 of 1 -> "model.bf16.safetensors"; of 2: "model.bf16-00001-of-00002.safetensors"
std::string shard_name(const std::string& model, size_t number, size_t count) {
  if (count == 1) return model + ".safetensors";
  return fmt::format("{}-{:05}-of-{:05}.safetensors", model, number + 1, count);
}

}  // namespace

bool covers(const Access& file, const Access& access) {
  const uint32_t readable = file.mode & 0444;
  if (readable == 0444) return true;
  const bool root_only = access.uid == 0 && access.gid == 0 && (access.mode & 0444) == 0400;
  return root_only || (file.uid == access.uid && file.gid == access.gid && (access.mode & 0444 & ~readable) == 0);
}

std::string file_name_of(const std::string& name) {
  if (name.empty()) return "%00";
  if (name == "." || name == "..") return "%2E" + name.substr(1);
  std::string file_name;
  for (const char c : name) {
    if (c == '/' || c == '%' || static_cast<uint8_t>(c) < ' ') {
      file_name += fmt::format("%{:02X}", static_cast<uint8_t>(c));
    } else {
      file_name += c;
    }
  }
  if (file_name.size() <= kLongestName) return file_name;
  return file_name.substr(0, kLongestName - 10) + '~' + std::to_string(hash_of("", name, 0));
}

View::View(Source source) : source_(std::move(source)), names_(access_of_names()), problems_(source_.map.problems) {
  nodes_[0].access = source_.folder;
  paths_[0] = "";
  add_by_name();
  add_groups();
  add_models();
  add_model_files();
  add_manifest();
  paths_.clear();
  problems_.clear();
  measure();
}

void View::measure() {
  constexpr size_t of_node = sizeof(Node) + 128, of_name = 128, of_tensor = 256;  // with what containers add
  for (const auto& [number, node] : nodes_) {
    memory_ += of_node + node.children.size() * of_name + (node.text ? node.text->size() : 0);
  }
  for (const Parameter& parameter : source_.map.parameters) {
    for (const auto& [state, tensor] : parameter.states) memory_ += of_tensor + tensor.pieces.size() * sizeof(Piece);
  }
  for (const Model& model : models_) memory_ += model.weights.size() * sizeof(Weight);
  memory_ += source_.files.size() * of_tensor;
}

const View::Node* View::node(NodeNumber number) const {
  const auto found = nodes_.find(number);
  return found == nodes_.end() ? nullptr : &found->second;
}

mode_t View::type_of(const Node& node) {
  if (node.kind == Kind::directory) return S_IFDIR;
  return node.kind == Kind::link ? S_IFLNK : S_IFREG;
}

NodeNumber View::add(NodeNumber parent, const std::string& name, Node node) {
  std::string path = paths_[parent] + '/' + name;
  std::string version = source_.version;
  if (node.kind == Kind::text) version += bytes_of(io::digest_of(std::as_bytes(std::span(*node.text))));
  NodeNumber number = 0;
  for (unsigned attempt = 0; number == 0 || nodes_.contains(number); ++attempt) {
    number = hash_of(version, path, attempt);
  }
  if (node.kind == Kind::directory) paths_[number] = std::move(path);
  nodes_.emplace(number, std::move(node));
  nodes_[parent].children[name] = number;
  return number;
}

NodeNumber View::folder(NodeNumber parent, const std::string& name) {
  const auto& children = nodes_[parent].children;
  if (const auto found = children.find(name); found != children.end()) return found->second;
  Node node;
  node.access = names_;
  node.access.mode |= (names_.mode & 0444) >> 2;  // who may read it may search it
  return add(parent, name, std::move(node));
}

void View::add_link(NodeNumber parent, const std::string& name, const std::string& target) {
  Node node;
  node.kind = Kind::link;
  node.access = {source_.folder.uid, source_.folder.gid, 0777};
  node.size = target.size();
  node.text = std::make_shared<const std::string>(target);
  add(parent, name, std::move(node));
}

void View::add_text(const std::string& name, std::string text, const Access& access) {
  Node node;
  node.kind = Kind::text;
  node.access = access;
  node.size = text.size();
  text.shrink_to_fit();
  node.text = std::make_shared<const std::string>(std::move(text));
  add(0, name, std::move(node));
}

// A user who may read all of these pieces may read what is made from them.
Access View::access_of(const std::vector<Piece>& pieces) const {
  if (pieces.empty()) return {source_.folder.uid, source_.folder.gid, source_.folder.mode & 0444};
  Access common = source_.access[pieces.front().file];
  common.mode &= 0444;
  for (const Piece& piece : pieces) common = both(common, source_.access[piece.file]);
  return common;
}

// The headers of files that hold tensors, or an index of them, tell names, types and shapes. So who may read all of
// these files may know the names.
Access View::access_of_names() const {
  std::vector<Piece> all;
  for (const Parameter& parameter : source_.map.parameters) {
    for (const auto& [state, tensor] : parameter.states)
      all.insert(all.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
  for (const meta::formats::SwapFile& swap : source_.map.undivided) all.push_back({swap.file, 0, 0});
  for (uint32_t index = 0; index < source_.files.size(); ++index) {
    if (meta::formats::kind_of(source_.files[index].path).tells_names()) all.push_back({index, 0, 0});
  }
  Access access = access_of(all);
  if (!source_.map.names_from.empty()) access.mode &= 0400;  // the names come from a file of another step
  return access;
}

void View::add_by_name() {
  if (source_.map.parameters.empty()) return;
  if (source_.map.parameters.size() > kMostNodes / 4) {
    problems_.push_back({"", "it has more parameters than a view can have files"});
    return;
  }
  const NodeNumber by_name = folder(0, "by_name");
  std::optional<NodeNumber> tensors;
  for (const Parameter& parameter : source_.map.parameters) {
    if (parameter.states.empty()) continue;
    const std::string name = file_name_of(parameter.name);
    const NodeNumber of_parameter = folder(by_name, name);
    for (const auto& [state, tensor] : parameter.states) {
      Node node;
      node.kind = Kind::tensor;
      node.access = access_of(tensor.pieces);
      node.size = bytes_of(tensor, tensor.dtype);
      node.tensor = &tensor;
      if (!nodes_[of_parameter].children.contains(file_name_of(state))) {
        add(of_parameter, file_name_of(state), std::move(node));
      }
    }
    if (!parameter.ds_id) continue;
    if (!tensors) tensors = folder(0, "tensors");
    add_link(*tensors, std::to_string(*parameter.ds_id), "../by_name/" + name);
  }
  for (const auto& [name, same_as] : source_.map.tied) {
    const bool known = nodes_[by_name].children.contains(file_name_of(same_as));
    if (known) add_link(by_name, file_name_of(name), file_name_of(same_as));
  }
}

void View::add_groups() {
  for (const meta::formats::SwapFile& swap : source_.map.undivided) {
    const std::string group = fmt::format("{}_{}", swap.first, swap.last);
    const std::string rank = fmt::format("rank{:02}", swap.rank);
    add_file(folder(folder(folder(0, "groups"), group), rank), file_name_of(swap.state), swap.file);
  }
}

// Adds a file of the step as it is.
void View::add_file(NodeNumber parent, const std::string& name, size_t index) {
  Node node;
  node.kind = Kind::whole_file;
  node.access = source_.access[index];
  node.access.mode &= 0444;
  node.size = source_.files[index].size;
  node.which = index;
  add(parent, name, std::move(node));
}

// A model is made of the master weights, and of the parameters as they are where these are not trained. There is no
// model that lacks a parameter: it would be taken for a whole one, since from_pretrained fills in random numbers.
std::vector<View::Weight> View::weights() {
  const auto lacks = [this](const std::string& what) {
    problems_.push_back({"", "there are no model files: " + what});
    return std::vector<Weight>();
  };
  const auto& parameters = source_.map.parameters;
  if (parameters.empty()) return {};
  if (!problems_.empty()) return lacks("not all of the step could be read");
  const bool masters = std::any_of(parameters.begin(), parameters.end(),
                                   [](const Parameter& parameter) { return parameter.states.contains("fp32"); });
  std::vector<Weight> weights;
  std::set<std::string_view> names;
  for (const Parameter& parameter : parameters) {
    if (parameter.kind == Parameter::Kind::other || parameter.kind == Parameter::Kind::resume) continue;
    const bool trained = masters && parameter.kind == Parameter::Kind::trained;
    const auto state = parameter.states.find(trained ? "fp32" : "param");
    if (state == parameter.states.end()) return lacks(parameter.name + " has no weights");
    if (!names.insert(parameter.name).second) return lacks("it has two of " + parameter.name);
    const auto own = parameter.states.find("param");
    const bool told = own != parameter.states.end();
    weights.push_back({&parameter.name, &state->second,
                       told ? own->second.dtype : source_.map.computes_in.value_or(state->second.dtype)});
  }
  return weights;
}

void View::add_models() {
  const auto all = weights();
  if (all.empty()) return;
  computes_in_ = compute_type(all);
  for (const ModelType& type : kModelTypes) add_model(type.name, type.dtype, all);
  const auto* const type = std::ranges::find(kModelTypes, computes_in_, &ModelType::dtype);
  const std::string name = std::string(kModel) + '.' + type->name;
  const bool whole = nodes_[0].children.contains(name + ".safetensors");
  if (whole) {
    const std::string own = meta::formats::weights_name(source_.map, source_.files);
    add_link(0, own == meta::formats::kAdapterName ? own : "model.safetensors", name + ".safetensors");
  } else {
    add_link(0, "model.safetensors.index.json", std::string("model.safetensors.index.") + type->name + ".json");
  }
}

// The type that the model computes in. If the checkpoint does not say it: that of most elements.
Dtype View::compute_type(const std::vector<Weight>& weights) const {
  if (source_.map.computes_in) return *source_.map.computes_in;
  std::map<Dtype, uint64_t> elements;
  for (const Weight& weight : weights) {
    if (is_castable(weight.own)) elements[weight.own] += meta::formats::elements_of(weight.tensor->shape).value_or(0);
  }
  const auto most = std::ranges::max_element(elements, {}, [](const auto& one) { return one.second; });
  return most == elements.end() ? Dtype::float32 : most->first;
}

// The type of a weight in the model of this type. A model in bf16 may keep some of its tensors in fp32 (a router's
// bias, say), and they stay so in the model of the type that it computes in. In fp32 nothing is lost.
Dtype View::type_in(const Weight& weight, Dtype model) const {
  if (!is_castable(weight.tensor->dtype)) return weight.tensor->dtype;
  const bool kept = model == computes_in_ && model != Dtype::float32 && is_castable(weight.own);
  return kept ? weight.own : model;
}

void View::add_model(const std::string& type, Dtype dtype, const std::vector<Weight>& weights) {
  std::vector<size_t> begins{0};
  uint64_t in_shard = 0, total = 0;
  for (size_t at = 0; at < weights.size(); ++at) {
    const uint64_t size = bytes_of(*weights[at].tensor, type_in(weights[at], dtype));
    if (in_shard > 0 && in_shard + size > kLargestShard) {
      begins.push_back(at);
      in_shard = 0;
    }
    in_shard += size;
    total += size;
  }
  const std::string model = std::string(kModel) + '.' + type;
  std::string map;
  for (size_t shard = 0; shard < begins.size(); ++shard) {
    const size_t end = shard + 1 < begins.size() ? begins[shard + 1] : weights.size();
    const std::string name = shard_name(model, shard, begins.size());
    add_shard(name, dtype, std::span(weights).subspan(begins[shard], end - begins[shard]));
    if (begins.size() == 1) return;
    for (size_t at = begins[shard]; at < end; ++at) {
      map += (map.empty() ? "\n" : ",\n") + dumped(*weights[at].name) + ": " + dumped(name);
    }
  }
  const std::string head = "{\"metadata\": {\"total_size\": " + std::to_string(total) + "},\n\"weight_map\": {";
  add_text("model.safetensors.index." + type + ".json", head + map + "}}\n", names_);
}

void View::add_shard(const std::string& name, Dtype dtype, std::span<const Weight> weights) {
  Model model{dtype, {weights.begin(), weights.end()}};
  std::vector<Piece> pieces;
  DataBegin begin;
  uint64_t size = 0;
  for (const Weight& weight : weights) {
    const Dtype as = type_in(weight, dtype);
    pieces.insert(pieces.end(), weight.tensor->pieces.begin(), weight.tensor->pieces.end());
    if (as == weight.tensor->dtype) {
      uint64_t position = size;
      for (const Piece& piece : weight.tensor->pieces) {
        begin.add(piece, position);
        position += piece.size;
      }
    }
    size += bytes_of(*weight.tensor, as);
  }
  model.begin = begin.best();
  Node node;
  node.kind = Kind::model;
  node.access = both(names_, access_of(pieces));
  node.size = header_of(model).size() + size;
  node.which = models_.size();
  models_.push_back(std::move(model));
  add(0, name, std::move(node));
}

// Made for each open, since it may take megabytes, and most of a view's models are never opened.
std::string View::header_of(const Model& model) const {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";
  for (const Weight& weight : model.weights) {
    const Dtype as = type_in(weight, model.dtype);
    header.tensors.push_back({*weight.name, as, weight.tensor->shape, 0, bytes_of(*weight.tensor, as)});
  }
  return meta::formats::safetensors_header(header, kSharedBlock, model.begin);
}

// Adds what transformers wants beside the weights, out of the step's own folder, or out of that in which verl leaves
// it.
void View::add_model_files() {
  const std::string of_verl = std::string(meta::formats::kVerlFolder) + "/huggingface/";
  constexpr std::array<std::string_view, 6> endings{".json", ".txt", ".model", ".jinja", ".tiktoken", ".py"};
  for (size_t index = 0; index < source_.files.size(); ++index) {
    std::string name = source_.files[index].path;
    if (name.starts_with(of_verl)) name.erase(0, of_verl.size());
    const bool wanted = name.find('/') == std::string::npos && !name.ends_with(".index.json") &&
                        name != "trainer_state.json" && !nodes_[0].children.contains(name) &&
                        std::any_of(endings.begin(), endings.end(), [&](auto e) { return name.ends_with(e); });
    if (wanted) add_file(0, name, index);
  }
}

// The manifest is written piece by piece, since a JSON tree would take many times its size.
void View::add_manifest() {
  const Access access = names_;
  std::string text = "{\"version\": 1,\n\"files\": [";
  const auto separator = [&text] {
    return [&text, first = true]() mutable { text += std::exchange(first, false) ? "\n" : ",\n"; };
  };
  auto next_file = separator();
  for (size_t index = 0; index < source_.files.size(); ++index) {
    next_file();
    Json file = {{"path", source_.files[index].path}, {"bytes", source_.files[index].size}};
    const bool told = !source_.digests[index].empty() && covers(source_.access[index], access);
    if (told) file["digest"] = source_.digests[index];
    text += dumped(file);
  }
  text += "],\n\"tensors\": [";
  auto next_tensor = separator();
  for (const Parameter& parameter : source_.map.parameters) {
    for (const auto& [state, tensor] : parameter.states) {
      next_tensor();
      text += dumped(described(parameter, state, tensor));
    }
  }
  Json tied = Json::array(), problems = Json::array();
  for (const auto& [name, same_as] : source_.map.tied) tied.push_back({{"name", name}, {"same_as", same_as}});
  for (const auto& problem : problems_) problems.push_back({{"file", problem.file}, {"reason", problem.reason}});
  text += "],\n";
  if (const std::string& from = source_.map.names_from; !from.empty())
    text += "\"names_from\": " + dumped(from) + ",\n";
  text += "\"tied\": " + dumped(tied) + ",\n\"problems\": " + dumped(problems) + "}\n";
  add_text("manifest.json", std::move(text), access);
}

bool View::makes_quickly(const Node& node) const {
  constexpr size_t kMostTensors = 256;
  return node.kind != Kind::model || models_[node.which].weights.size() <= kMostTensors;
}

Content View::content(const Node& node) const {
  Content content;
  switch (node.kind) {
    case Kind::tensor:
      content.add(*node.tensor);
      break;
    case Kind::model: {
      const Model& model = models_[node.which];
      content.add(header_of(model));
      for (const Weight& weight : model.weights) content.add(*weight.tensor, type_in(weight, model.dtype));
      break;
    }
    case Kind::whole_file:
      content.add(Piece{static_cast<uint32_t>(node.which), 0, node.size});
      break;
    case Kind::text:
      content.add(node.text);
      break;
    default:
      break;
  }
  return content;
}

}  // namespace ckptfs::fs::views
