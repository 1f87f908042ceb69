#include "meta/formats/tensor_parallel.h"

#include <cerrno>
#include <string_view>
#include <utility>

#include "meta/formats/assembly.h"
#include "meta/formats/box.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/name_parts.h"
#include "meta/formats/pickle_access.h"

namespace ckptfs::meta::formats {
namespace {

using Value = Pickle::Value;

// "^model\.norm\.weight$" is the name "model.norm.weight". Nothing: it may fit several names.
std::optional<std::string> name_of_pattern(const Value& pattern) {
  const auto text = short_text(pattern);
  std::string_view rest = text.value_or("");
  if (!skip(rest, "^") || !drop(rest, "$")) return std::nullopt;
  std::string name;
  for (; !rest.empty(); rest.remove_prefix(1)) {
    const bool is_escaped = rest.front() == '\\';
    if (is_escaped) rest.remove_prefix(1);
    const bool is_plain =
        !rest.empty() && (is_escaped || std::string_view(".*+?()[]{}|^$").find(rest.front()) == rest.npos);
    if (!is_plain || (is_escaped && are_digits(rest.substr(0, 1)))) return std::nullopt;
    name += rest.front();
  }
  return name;
}

// The names that a list of patterns has. False: one of them is none.
bool read_names(const std::optional<Value>& patterns, MapBuilder& builder, std::set<std::string, std::less<>>& names) {
  for (size_t at = 0; patterns && at < patterns->size(); ++at) {
    auto name = name_of_pattern((*patterns)[at]);
    if (!name || !builder.has_room(sizeof(std::string) + name->size())) return false;
    names.insert(*std::move(name));
  }
  return true;
}

bool is_empty(const std::optional<Value>& value) { return !value || (value->size() == 0 && value->pairs() == 0); }

// Adds what lies in this part of the whole tensor.
bool add_boxes(const Box& box, const Tensor& part, MapBuilder& builder, std::vector<PlacedBox>& boxes) {
  const uint64_t element = size_of(part.dtype);
  uint64_t at = 0;
  for (const Piece& piece : part.pieces) {
    uint64_t offset = piece.offset;
    const uint64_t end = at + piece.size / element;
    for (Box& one : boxes_of_range(box, at, end)) {
      const uint64_t size = *elements_of(one.sizes) * element;
      boxes.push_back({std::move(one), {piece.file, offset, size}});
      if (!builder.budget().take(boxes.back())) return false;
      offset += size;
    }
    at = end;
  }
  return at == *elements_of(part.shape);
}

bool fits(const Tensor& part, const Tensor& first, size_t dimension) {
  if (part.dtype != first.dtype || part.shape.size() != first.shape.size() || !part.boxes.empty()) return false;
  for (size_t at = 0; at < part.shape.size(); ++at) {
    if (at != dimension && part.shape[at] != first.shape[at]) return false;
  }
  return true;
}

// The tensor whose parts these are, by rank, cut along this dimension. None: they do not fit together, or there is no
// room for it.
std::optional<Tensor> joined_tensor(const std::vector<const Tensor*>& parts, size_t dimension, MapBuilder& builder) {
  Shape shape = parts.front()->shape;
  if (dimension >= shape.size()) return std::nullopt;
  shape[dimension] = 0;
  std::vector<PlacedBox> boxes;
  for (const Tensor* const part : parts) {
    if (!fits(*part, *parts.front(), dimension)) return std::nullopt;
    if (part->shape[dimension] > kMostElements - shape[dimension]) return std::nullopt;
    Box box{Shape(shape.size(), 0), part->shape};
    box.offsets[dimension] = shape[dimension];
    shape[dimension] += part->shape[dimension];
    if (!elements_of(shape) || !add_boxes(box, *part, builder, boxes)) return std::nullopt;
  }
  auto whole = assembled(parts.front()->dtype, shape, std::move(boxes), builder.budget());
  if (whole) return std::move(whole.value());
  if (whole.error().errno_value() == ENOTSUP) builder.give_up(std::nullopt, whole.error().message());
  return std::nullopt;
}

// Joins each state that all parts have. None: they do not fit together.
std::optional<Parameter> joined(const std::vector<const Parameter*>& parts, const TensorCuts& cuts,
                                MapBuilder& builder) {
  Parameter whole{parts.front()->name, parts.front()->kind, std::nullopt, {}};
  if (cuts.replicated.contains(whole.name) || whole.kind == Parameter::Kind::buffer) {
    whole.states = parts.front()->states;
    return whole;
  }
  const size_t dimension = cuts.along_columns.contains(whole.name) ? 1 : 0;
  const auto told = cuts.shapes.find(whole.name);
  for (const auto& [state, first] : parts.front()->states) {
    std::vector<const Tensor*> tensors;
    for (const Parameter* const part : parts) {
      const auto found = part->states.find(state);
      if (found == part->states.end()) return std::nullopt;
      tensors.push_back(&found->second);
    }
    auto tensor = joined_tensor(tensors, dimension, builder);
    const bool of_vocabulary = cuts.of_vocabulary.contains(whole.name);
    if (!tensor || (told == cuts.shapes.end() ? !of_vocabulary : tensor->shape != told->second)) return std::nullopt;
    if (of_vocabulary && tensor->shape.front() != cuts.vocabulary) return std::nullopt;
    whole.states.emplace(state, *std::move(tensor));
  }
  return whole;
}

}  // namespace

TensorCuts cuts_of(const std::optional<Value>& told, MapBuilder& builder) {
  TensorCuts cuts;
  if (!told || told->is_none() || told->pairs() == 0) {
    cuts.unread = "the ranks of tensor parallelism do not tell how they have cut it";
    return cuts;
  }
  // Tensors of which each rank has a part of several, as of a fused q, k and v.
  if (!is_empty(told->find("parameter_with_sub_params")) ||
      !is_empty(told->find("autotp_unsupported_parameter_patterns")))
    cuts.unread = "it has tensors that tensor parallelism has cut into several parts for each rank";
  const bool read = read_names(told->find("parameter_with_row_parallelism_patterns"), builder, cuts.along_columns) &&
                    read_names(told->find("tp_replicated_parameter_patterns"), builder, cuts.replicated) &&
                    read_names(told->find("vocabulary_parameter_patterns"), builder, cuts.of_vocabulary);
  cuts.vocabulary = static_cast<uint64_t>(number_of(told->find("original_vocab_size")).value_or(0));
  if (!read) cuts.unread = "what tells how tensor parallelism has cut it is not read";
  const auto maps = find(told->find("affine_map"), "params");
  for (size_t at = 0; maps && at < maps->pairs(); ++at) {
    const auto [pattern, map] = maps->pair(at);
    auto name = name_of_pattern(pattern);
    auto shape = field(map, "logical_shape");
    auto numbers = shape ? numbers_of(*shape) : std::nullopt;
    if (!name || !numbers || !builder.has_room(sizeof(Shape) + 64 + name->size())) continue;
    cuts.shapes.emplace(*std::move(name), *std::move(numbers));
  }
  return cuts;
}

void join_ranks(const TensorCuts& cuts, const std::vector<size_t>& begins, MapBuilder& builder) {
  std::vector<Parameter> parts = std::exchange(builder.map().parameters, {});
  std::vector<std::map<std::string_view, const Parameter*>> of_ranks(begins.size());
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const size_t end = rank + 1 < begins.size() ? begins[rank + 1] : parts.size();
    for (size_t at = begins[rank]; at < end; ++at) of_ranks[rank].emplace(parts[at].name, &parts[at]);
    if (of_ranks[rank].size() != of_ranks.front().size())
      return builder.left_out(std::nullopt, "the ranks of tensor parallelism have not the same parameters");
  }
  for (const auto& [name, first] : of_ranks.front()) {
    std::vector<const Parameter*> same;
    for (const auto& of_rank : of_ranks) {
      const auto found = of_rank.find(name);
      if (found != of_rank.end()) same.push_back(found->second);
    }
    auto whole = same.size() == of_ranks.size() ? joined(same, cuts, builder) : std::nullopt;
    if (builder.is_given_up()) return;
    if (whole && builder.has_room(*whole)) {
      builder.map().parameters.push_back(*std::move(whole));
    } else {
      builder.left_out(std::nullopt, std::string(name) + ": what tensor parallel ranks have of it does not fit");
    }
  }
}

void keep_apart(const TensorCuts& cuts, const std::vector<size_t>& begins, MapBuilder& builder) {
  std::vector<Parameter>& parameters = builder.map().parameters;
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const size_t end = rank + 1 < begins.size() ? begins[rank + 1] : parameters.size();
    for (size_t at = begins[rank]; at < end; ++at) {
      parameters[at].name = model_rank_name(static_cast<unsigned>(rank)) + "/" + parameters[at].name;
      parameters[at].kind = Parameter::Kind::other;
    }
  }
  builder.left_out(std::nullopt, cuts.unread);
}

}  // namespace ckptfs::meta::formats
