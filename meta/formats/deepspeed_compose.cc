#include "meta/formats/deepspeed_compose.h"

#include <algorithm>
#include <span>
#include <utility>

namespace ckptfs::meta::formats {
namespace {

// Joins a tensor of which each rank holds ceil(elements / ranks) elements from index `at` on; the rest of the last
// ranks' elements is padding. Each rank must have a value in `flats`. Returns nothing if a rank holds too few elements
// or another type.
std::optional<Tensor> joined(const Member& member, const Flats& flats, uint64_t at) {
  Tensor tensor{flats.front()->dtype, member.shape, {}};
  const uint64_t part = divide_up(member.elements, flats.size());
  const uint64_t element = size_of(tensor.dtype);
  for (size_t rank = 0; rank < flats.size(); ++rank) {
    const uint64_t begin = std::min(member.elements, rank * part), end = std::min(member.elements, begin + part);
    const Flat& flat = *flats[rank];
    if (flat.dtype != tensor.dtype || at + (end - begin) > flat.elements()) return std::nullopt;
    if (begin < end) {
      tensor.pieces.push_back({flat.piece.file, flat.piece.offset + at * element, (end - begin) * element});
    }
  }
  return tensor;
}

// Lays all ranks' parts end to end, and returns the index of the element at which each part ends. Each rank must have a
// value in `flats`. Returns an empty list if there are more than 2^60 elements.
using Ends = std::vector<uint64_t>;
Ends ends_of(const Flats& flats) {
  Ends ends;
  uint64_t end = 0;
  for (const auto& flat : flats) {
    if (flat->elements() > kMostElements - end) return {};
    ends.push_back(end += flat->elements());
  }
  return ends;
}

// Joins a tensor that begins at element `at` of all ranks' parts laid end to end. Returns nothing if the parts end
// before it, or have different types.
std::optional<Tensor> cut_out(const Member& member, const Flats& flats, const Ends& ends, uint64_t at) {
  Tensor tensor{flats.front()->dtype, member.shape, {}};
  const uint64_t element = size_of(tensor.dtype);
  uint64_t left = member.elements;
  if (ends.size() != flats.size()) return std::nullopt;
  auto rank = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
  for (; left > 0 && rank < flats.size(); ++rank) {
    const Flat& flat = *flats[rank];
    if (flat.dtype != tensor.dtype) return std::nullopt;
    const uint64_t begin = at - (ends[rank] - flat.elements()), count = std::min(left, ends[rank] - at);
    if (count > 0) tensor.pieces.push_back({flat.piece.file, flat.piece.offset + begin * element, count * element});
    left -= count;
    at += count;
  }
  return left == 0 ? std::optional(std::move(tensor)) : std::nullopt;
}

class Composer {
 public:
  Composer(DeepSpeedParts& parts, const std::vector<RankFiles>& ranks, MapBuilder& builder)
      : parts_(parts), ranks_(ranks), builder_(builder) {}

  void run() {
    for (ParameterGroup& group : parts_.groups) compose_group(group);
    compose_frozen();
  }

 private:
  std::optional<uint64_t> id_of(const std::string& name) const {
    const auto known = parts_.ids.find(name);
    return known == parts_.ids.end() ? std::nullopt : known->second;
  }

  // Makes the group's parameters, each with all of its states that are whole.
  void compose_group(ParameterGroup& group) {
    if (group.members.empty()) return;
    const size_t first = builder_.map().parameters.size();
    for (const Member& member : group.members) {
      Parameter parameter{member.name, Parameter::Kind::trained, std::nullopt, {}};
      if (!builder_.has_room(parameter)) return;
      builder_.map().parameters.push_back(std::move(parameter));
    }
    const auto of_group = std::span(builder_.map().parameters).subspan(first);
    if (group.name && !of_group.empty()) {
      of_group.front().ds_id = group.name->first;
      of_group.back().ds_id = group.name->last;
    }
    for (Parameter& parameter : of_group) {
      if (const auto id = id_of(parameter.name)) parameter.ds_id = id;
    }
    for (const auto& [state, flats] : group.states) compose_state(group, state, flats, of_group);
    for (Parameter& parameter : of_group) compose_compute(parameter);
  }

  void compose_state(const ParameterGroup& group, const std::string& state, const Flats& flats,
                     std::span<Parameter> parameters) {
    for (size_t number = 0; number < flats.size(); ++number) {
      if (!flats[number]) {
        const bool unread = builder_.has_told(Problem::Kind::unreadable);
        return builder_.problem(std::nullopt,
                                state + " of " + group.members.front().name + " and what lies with it: rank " +
                                    std::to_string(number) + " has none",
                                unread ? Problem::Kind::unreadable : Problem::Kind::missing);
      }
    }
    for (const auto& flat : flats) {
      if (parts_.stage == 3 && flat->elements() != group.part) {
        return builder_.problem(flat->piece.file, state + " has not the length of its parameters");
      }
    }
    uint64_t at = 0;  // elements: of each rank's part, or of all parts end to end
    std::vector<Tensor> tensors;
    const Ends ends = parts_.stage == 3 ? Ends() : ends_of(flats);
    for (const Member& member : group.members) {
      // Joining a parameter takes a piece of each rank.
      if (parts_.stage == 3 && !builder_.has_room(flats.size() * sizeof(Piece))) return;
      auto tensor = parts_.stage == 3 ? joined(member, flats, at) : cut_out(member, flats, ends, at);
      if (!tensor) return builder_.problem(flats.front()->piece.file, state + " ends within " + member.name);
      const Tensor frame{tensor->dtype, tensor->shape, {}};  // in stage 3 without the pieces, which are counted
      if (!builder_.has_room(parts_.stage == 3 ? frame : *tensor)) return;
      tensors.push_back(std::move(*tensor));
      at += parts_.stage == 3 ? divide_up(member.elements, flats.size()) : member.elements + member.padding;
    }
    for (size_t member = 0; member < tensors.size(); ++member) {
      parameters[member].states.emplace(state, std::move(tensors[member]));
    }
  }

  // Adds the parameter as the model computes with it, if a file has it.
  void compose_compute(Parameter& parameter) {
    if (auto found = parts_.compute.extract(parameter.name)) {
      parameter.states.emplace(kParam, std::move(found.mapped()));
      return;
    }
    if (!parameter.ds_id) return;
    const auto master = parameter.states.find(kMaster);
    if (master == parameter.states.end()) return;
    add_swapped_param(parameter, master->second.shape);
  }

  void add_swapped_param(Parameter& parameter, const Shape& shape) {
    const Member member{parameter.name, shape, *elements_of(shape), 0};
    Flats flats;
    if (!builder_.has_room(ranks_.size() * sizeof(Flats::value_type))) return;
    for (const RankFiles& files : ranks_) {
      const auto file = files.params.find(*parameter.ds_id);
      if (file == files.params.end()) return;
      flats.emplace_back(
          Flat{{file->second, 0, builder_.files().list()[file->second].size}, *builder_.map().computes_in});
    }
    if (auto tensor = joined(member, flats, 0)) parameter.states.emplace(kParam, std::move(*tensor));
  }

  void compose_frozen() {
    for (const Member& member : parts_.frozen) {
      Parameter parameter{member.name, Parameter::Kind::frozen, std::nullopt, {}};
      parameter.ds_id = id_of(member.name);
      const Flats& flats = parts_.fragments[member.name];
      const bool whole = !flats.empty() && std::all_of(flats.begin(), flats.end(), [](const auto& f) { return !!f; });
      auto tensor = whole ? joined(member, flats, 0) : std::nullopt;
      if (tensor) {
        parameter.states.emplace(kParam, *std::move(tensor));
      } else {
        builder_.left_out(std::nullopt,
                          "frozen parameter " + member.name +
                              " is not all there (DeepSpeed leaves one that it swaps to NVMe out of checkpoints)");
      }
      if (!builder_.has_room(parameter)) return;
      builder_.map().parameters.push_back(std::move(parameter));
    }
  }

  DeepSpeedParts& parts_;
  const std::vector<RankFiles>& ranks_;
  MapBuilder& builder_;
};

}  // namespace

void compose(DeepSpeedParts& parts, const std::vector<RankFiles>& ranks, MapBuilder& builder) {
  Composer(parts, ranks, builder).run();
}

}  // namespace ckptfs::meta::formats
