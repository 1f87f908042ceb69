#include "meta/formats/rank_pickles.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "meta/formats/assembly.h"
#include "meta/formats/box.h"
#include "meta/formats/name_parts.h"
#include "meta/formats/pickle_access.h"
#include "meta/formats/torch_file.h"

namespace ckptfs::meta::formats {
namespace {

using Value = Pickle::Value;

constexpr uint32_t kMostPickleRanks = 1 << 16;

Error not_read(const std::string& what) { return Error(ENOTSUP, what); }

// What one rank holds of a tensor.
struct Part {
  TorchTensor local;
  Shape shape;                 // of the whole tensor
  std::optional<size_t> dim;   // a DTensor's, along which the ranks have parts one after another
  bool repeated = false;       // a DTensor's: other ranks have the same part
  std::optional<Shape> place;  // a ShardedTensor's
};

// A tensor, as its parts are found.
struct Joined {
  Dtype dtype = Dtype::float32;
  Shape shape;
  std::vector<PlacedBox> boxes;
  uint64_t next = 0;   // along `dim`: where the next rank's part begins
  uint32_t ranks = 0;  // that have it
};

// The attributes in a state. Where a class has slots it is a pair of two dicts, of which the second has them.
std::optional<Value> attributes_of(const std::optional<Value>& state) {
  return state && state->kind() == Pickle::Kind::tuple && state->size() == 2 ? (*state)[1] : state;
}

Result<TorchTensor> local_tensor(const std::optional<Value>& value) {
  if (!value) return not_read("it has no part here");
  TRY_ASSIGN(auto tensor, TorchFile::tensor(*value));
  if (!tensor) return not_read("its part is no tensor");
  return *std::move(tensor);
}

// Are the ranks of the mesh in their order? Older versions of torch have another name for the list.
bool has_usual_ranks(const std::optional<Value>& mesh) {
  auto ranks = field(mesh, "_flatten_rank_map");
  if (!ranks) ranks = field(mesh, "_flatten_mesh_list");
  for (size_t at = 0; ranks && at < ranks->size(); ++at) {
    if ((*ranks)[at].integer() != static_cast<int64_t>(at)) return false;
  }
  return ranks.has_value();
}

// Either all ranks have the whole tensor, or the last dimension of the mesh divides one of its dimensions.
Result<Part> part_of_dtensor(const Value& told_of_it, const Shape& shape) {
  const auto state = attributes_of(told_of_it);
  TRY_ASSIGN(TorchTensor local, local_tensor(field(state, "_local_tensor")));
  Part part{std::move(local), shape, {}, false, {}};
  const auto spec = field(state, "_spec");
  const auto told = attributes_of(spec ? spec->state() : std::nullopt);
  const auto placements = field(told, "placements"), mesh = field(told, "mesh");
  if (!placements || placements->size() == 0 || !mesh || !has_usual_ranks(attributes_of(mesh->state()))) {
    return not_read("which rank has which part of it is not told as torch tells it");
  }
  for (size_t at = 0; at < placements->size(); ++at) {
    const Value one = (*placements)[at];
    const std::string name = one.name();
    const auto dim = number_of(field(attributes_of(one.state()), "dim"));
    if (name.ends_with(".Replicate")) {
      part.repeated = true;
    } else if (name.ends_with(".Shard") && at + 1 == placements->size() && dim && *dim >= 0 &&
               static_cast<uint64_t>(*dim) < shape.size()) {
      part.dim = static_cast<size_t>(*dim);
    } else {
      return not_read("it is placed as " + name + ", which is not joined");
    }
  }
  return part;
}

Result<std::vector<Part>> parts_of_sharded(const Value& state, const Shape& shape) {
  std::vector<Part> parts;
  if (state.size() == 0) return not_read("it has no parts");
  const Value shards = state[0];
  for (size_t at = 0; at < shards.size(); ++at) {
    const auto shard = attributes_of(shards[at].state());
    const auto metadata = field(shard, "metadata");
    const auto offsets = metadata ? field(attributes_of(metadata->state()), "shard_offsets") : std::nullopt;
    auto place = offsets ? numbers_of(*offsets) : std::nullopt;
    if (!place) return not_read("the place of its part is not told");
    TRY_ASSIGN(TorchTensor local, local_tensor(field(shard, "tensor")));
    parts.push_back({std::move(local), shape, {}, false, std::move(place)});
  }
  return parts;
}

// A plain tensor is whole in each rank.
Result<std::vector<Part>> parts_of(const Value& value) {
  const auto arguments = value.arguments();
  const bool wrapped = value.name() == "torch._tensor._rebuild_from_type_v2" && arguments && arguments->size() >= 4 &&
                       (*arguments)[0].name() == "torch._utils._rebuild_wrapper_subclass";
  if (!wrapped) {
    TRY_ASSIGN(TorchTensor whole, local_tensor(value));
    Shape shape = whole.shape;
    return std::vector<Part>{{std::move(whole), std::move(shape), {}, true, {}}};
  }
  constexpr size_t kOfSize = 2;
  const Value made_by = (*arguments)[2], state = (*arguments)[3];
  const auto shape = made_by.size() > kOfSize ? shape_of(made_by[kOfSize]) : std::nullopt;
  if (!shape) return not_read("its shape is not told");
  const std::string type = (*arguments)[1].name();
  if (type.ends_with(".ShardedTensor")) return parts_of_sharded(state, *shape);
  if (!type.ends_with(".DTensor")) return not_read("a tensor of the type " + type + " is not read");
  TRY_ASSIGN(Part part, part_of_dtensor(state, *shape));
  return std::vector<Part>{std::move(part)};
}

// The model of one folder.
class FolderModel {
 public:
  FolderModel(const StepFiles& files, MapBudget& budget, TensorMap& map) : files_(files), budget_(budget), map_(map) {}

  // `indices`: the files of all ranks, in their order.
  void read(const std::vector<uint32_t>& indices) {
    for (const uint32_t index : indices) {
      const auto opened = files_.open(index);
      auto file = opened ? TorchFile::open(files_.limited(opened.value())) : opened.error();
      if (!file) return problem(index, file.error());
      const Value root = file.value().root();
      for (size_t at = 0; at < root.pairs(); ++at) {
        const auto [key, value] = root.pair(at);
        const auto name = short_text(key);
        if (!name) return problem(index, not_read("a tensor whose name is none"));
        const auto added = add(index, file.value(), std::string(*name), value);
        if (!added) return problem(index, with_name(std::string(*name), added.error()));
      }
    }
    ranks_ = static_cast<uint32_t>(indices.size());
  }

  void finish(const std::string& prefix, Parameter::Kind kind) {
    if (ranks_ == 0) return;  // a problem was told
    for (const std::string& name : names_) {
      if (is_flat(name))
        add_problem(map_, {"", name + " holds several parameters, whose names are not in it", Problem::Kind::left_out});
      Joined& joined = joined_.at(name);
      auto tensor = joined.ranks == ranks_ ? assembled(joined.dtype, joined.shape, std::move(joined.boxes), budget_)
                                           : Result<Tensor>(Error(EBADMSG, "not all ranks have it"));
      if (!tensor) {
        add_problem(map_, {"", prefix + name + ": " + tensor.error().message()});
      } else if (!budget_.add(map_, prefix + name, std::move(tensor).value(), kind)) {
        return add_problem(map_, {"", kTooManyTensors});
      }
    }
  }

 private:
  void problem(uint32_t index, const Error& error) {
    const bool cut = error.errno_value() == ENODATA;
    add_problem(map_,
                {files_.list()[index].path, error.message(), cut ? Problem::Kind::missing : Problem::Kind::unreadable});
  }

  Result<> add(uint32_t index, TorchFile& file, const std::string& name, const Value& value) {
    TRY_ASSIGN(const auto parts, parts_of(value));
    const auto [found, is_new] = joined_.try_emplace(name);
    if (is_new && !budget_.take(sizeof(Joined) + 2 * sizeof(std::string) + 2 * name.size()))
      return not_read(kTooManyTensors);
    if (is_new) names_.push_back(name);
    Joined& joined = found->second;
    ++joined.ranks;
    for (const Part& part : parts) {
      if (joined.ranks == 1) {
        joined.dtype = part.local.dtype;
        joined.shape = part.shape;
      }
      if (part.local.dtype != joined.dtype || part.shape != joined.shape)
        return Error(EBADMSG, "ranks have other shapes or types of it");
      TRY_ASSIGN(const auto offsets, place_of(part, joined));
      if (!offsets || part.local.elements() == 0) continue;
      Box box{*offsets, part.local.shape};
      if (!lies_within(box, joined.shape)) return Error(EBADMSG, "a part of it lies outside");
      TRY_ASSIGN(const FileRange range, file.range(part.local));
      joined.boxes.push_back({std::move(box), {index, range.offset, range.size}});
      if (!budget_.take(joined.boxes.back()) || !budget_.take_runs(1)) return not_read(kTooManyRuns);
    }
    return success();
  }

  // None: another rank has it, too.
  static Result<std::optional<Shape>> place_of(const Part& part, Joined& joined) {
    if (part.place) return std::optional(*part.place);
    Shape offsets(part.shape.size(), 0);
    if (!part.dim) return joined.ranks == 1 ? std::optional(std::move(offsets)) : std::nullopt;
    if (part.local.shape.size() != part.shape.size()) return Error(EBADMSG, "a part of it has not its dimensions");
    const uint64_t size = part.local.shape[*part.dim], whole = part.shape[*part.dim];
    if (joined.next == whole && part.repeated) return std::optional<Shape>();
    if (size > whole - joined.next) return Error(EBADMSG, "its parts are more than it has");
    offsets[*part.dim] = joined.next;
    joined.next += size;
    return std::optional(std::move(offsets));
  }

  const StepFiles& files_;
  MapBudget& budget_;
  TensorMap& map_;
  uint32_t ranks_ = 0;
  std::map<std::string, Joined> joined_;
  std::vector<std::string> names_;  // in their order
};

}  // namespace

std::optional<RankPickleName> parse_rank_pickle(std::string_view path) {
  RankPickleName name;
  name.folder = path.substr(0, path.rfind('/') + 1);
  std::string_view rest = path.substr(name.folder.size());
  constexpr std::string_view world = "_world_size_";
  const size_t end = rest.find(world);
  if (end == rest.npos) return std::nullopt;
  name.what = rest.substr(0, end);
  rest.remove_prefix(end + world.size());
  if (name.what != "model" && name.what != "optim" && name.what != "extra_state") return std::nullopt;
  const auto ranks = take_number<uint32_t>(rest);
  if (!ranks || !skip(rest, "_rank_")) return std::nullopt;
  const auto rank = take_number<uint32_t>(rest);
  if (!rank || rest != ".pt" || *rank >= *ranks || *ranks > kMostPickleRanks) return std::nullopt;
  name.ranks = *ranks;
  name.rank = *rank;
  return name;
}

TensorMap read_rank_pickles(const StepFiles& files, const MapOptions& options) {
  TensorMap map;
  MapBudget budget(options);
  std::map<std::pair<std::string_view, uint32_t>, std::map<uint32_t, uint32_t>> folders;  // files by rank
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const auto name = parse_rank_pickle(files.list()[index].path);
    if (name && name->what == "model") folders[{name->folder, name->ranks}][name->rank] = index;
  }
  for (auto one = folders.begin(); one != folders.end(); ++one) {
    const auto& [of, by_rank] = *one;
    const auto& [folder, ranks] = of;
    if (one != folders.begin() && std::prev(one)->first.first == folder)
      add_problem(map, {"", std::string(folder) + ": files of other numbers of ranks lie together"});
    if (by_rank.size() != ranks) {
      const std::string where = folder.empty() ? "" : std::string(folder) + ": ";
      add_problem(map, {"", where + "not all of its " + std::to_string(ranks) + " ranks have a model here",
                        Problem::Kind::missing, true});
      continue;
    }
    std::vector<uint32_t> indices;
    for (const auto& [rank, index] : by_rank) indices.push_back(index);
    const bool first = of == folders.begin()->first;
    FolderModel model(files, budget, map);
    model.read(indices);
    model.finish(first ? "" : std::string(folder), first ? Parameter::Kind::trained : Parameter::Kind::other);
  }
  return map;
}

}  // namespace ckptfs::meta::formats
