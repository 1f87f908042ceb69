#include "meta/formats/deepspeed.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "io/json.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/deepspeed_names.h"
#include "meta/formats/map_budget.h"
#include "meta/formats/pickle_access.h"
#include "meta/formats/shards.h"
#include "meta/formats/torch_file.h"

namespace ckptfs::meta::formats {
namespace {

using Value = Pickle::Value;

constexpr size_t kMostStates = 16;  // in one group
// Bytes; runtime/swap_tensor/optimizer_utils.py, MIN_AIO_BYTES
constexpr uint64_t kSmallestSwapped = uint64_t{1} << 20;
constexpr const char* kMaster = "fp32";
constexpr const char* kCompute = "param";
constexpr std::array<std::string_view, 2> kMoments{"exp_avg", "exp_avg_sq"};
// Bounds for our map of names to ds_ids.
constexpr io::JsonBounds kIdsBounds{
    .bytes = uint64_t{16} << 20, .values = io::kAnyNumber, .text = uint64_t{64} << 10, .depth = 8};

// ENODATA means that a torch file was not written to its end, so a part of it is missing.
Problem::Kind kind_of(const Error& error) {
  return error.errno_value() == ENODATA ? Problem::Kind::missing : Problem::Kind::unreadable;
}

// Reads {"layers.0.weight": 3, ...}. Keeps the ids of known parameters only.
class IdsReader : public io::JsonVisitor {
 public:
  explicit IdsReader(std::map<std::string_view, std::optional<uint64_t>>& ids) : ids_(ids) {}

  bool start_object(size_t) override { return begin(true); }
  bool start_array(size_t) override { return begin(false); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& key) override {
    if (depth_ == 1) name_ = key;
    return true;
  }
  bool number_unsigned(number_unsigned_t id) override {
    const auto known = depth_ == 1 ? ids_.find(name_) : ids_.end();
    if (known != ids_.end()) known->second = id;
    return true;
  }

 private:
  bool begin(bool object) {
    if (++depth_ == 1 && !object) return fails(Error(EBADMSG, "it is no map of names to numbers"));
    return true;
  }
  bool end() {
    --depth_;
    return true;
  }

  std::map<std::string_view, std::optional<uint64_t>>& ids_;
  unsigned depth_ = 0;
  std::string name_;
};

// One rank's swap file of one state of a group.
struct SwappedState {
  std::string state;
  uint32_t file = 0;
};
// The swap files by the group's name, "0_6".
using SwappedStates = std::map<std::string_view, std::vector<SwappedState>>;

// Parameters that the optimizer keeps as one.
struct Group {
  std::vector<Member> members;
  uint64_t part = 0;  // elements that each rank holds, in stage 3
  std::optional<GroupName> name;
  std::map<std::string, Flats> states;
};

class Reader {
 public:
  Reader(const StepFiles& files, const std::string& folder) : files_(files), found_(find_files(files, folder)) {}

  TensorMap read() {
    for (const auto& [file, reason] : found_.foreign) is_foreign(file, reason);
    if (foreign_) return std::move(map_);  // reading it as a known layout would give wrong tensors
    if (!read_first_model()) {
      leave_undivided();
      return std::move(map_);
    }
    if (foreign_) return nothing();
    for (unsigned rank = 0; rank < ranks_.size(); ++rank) read_optimizer(rank);
    if (foreign_) return nothing();
    read_other_models();
    read_ids();
    for (Group& group : groups_) compose(group);
    compose_frozen();
    if (foreign_) return nothing();
    return std::move(map_);
  }

 private:
  void problem(std::optional<uint32_t> file, const std::string& reason,
               Problem::Kind kind = Problem::Kind::unreadable) {
    const Problem found{file ? files_.list()[*file].path : std::string(), reason, kind};
    const bool first = kind != Problem::Kind::left_out && !std::exchange(told_[static_cast<size_t>(kind)], true);
    if (map_.problems.size() < kMostProblems) {
      map_.problems.push_back(found);
    } else if (first) {
      map_.problems.back() = found;  // keeps at least one problem of each kind that matters
    }
  }
  void missing(std::optional<uint32_t> file, const std::string& reason) {
    problem(file, reason, Problem::Kind::missing);
  }
  void left_out(std::optional<uint32_t> file, const std::string& reason) {
    problem(file, reason, Problem::Kind::left_out);
  }

  // Calls `with` on a torch file, which is open during the call only.
  void with_file(uint32_t index, const std::function<void(TorchFile&)>& with) {
    const auto descriptor = files_.open(index);
    if (!descriptor) return problem(index, descriptor.error().message());
    auto file = TorchFile::open(files_.limited(descriptor.value()));
    if (!file) return problem(index, file.error().message(), kind_of(file.error()));
    with(file.value());
  }

  // Returns where the tensor's bytes are. If the value is no tensor, or cannot be read, it adds a problem and returns
  // nothing.
  std::optional<Flat> flat_of(uint32_t index, TorchFile& file, const Value& value, const std::string& what) {
    const auto tensor = TorchFile::tensor(value);
    if (!tensor || !tensor.value()) {
      problem(index, what + ": " + (tensor ? "not a tensor" : tensor.error().message()));
      return std::nullopt;
    }
    const auto range = file.range(*tensor.value());
    if (!range) {
      problem(index, what + ": " + range.error().message());
      return std::nullopt;
    }
    return Flat{{index, range.value().offset, range.value().size}, tensor.value()->dtype};
  }

  // Returns true if the budget allows `size` more.
  template <class Size>
  bool has_room(const Size& size) {
    if (!foreign_ && !budget_.take(size)) is_foreign(std::nullopt, kTooManyTensors);
    return !foreign_;
  }
  bool has_room_for(const Member& member) { return has_room(sizeof(Member) + 2 * member.name.size()); }

  // Reads model_states.pt of the first rank, which tells what the checkpoint contains.
  bool read_first_model() {
    const auto first = found_.common_model ? found_.common_model : ranks_.empty() ? std::nullopt : ranks_[0].model;
    if (!first) return false;
    bool read = false;
    with_file(*first, [&](TorchFile& file) {
      const Value root = file.root();
      read_config(root.find("ds_config"));
      const auto model_world = number_of(root.find("mp_world_size"));
      if (model_world && *model_world != 1) return is_foreign(first, "model parallel checkpoints are not read");
      for (const char* const experts : {"ds_autoep_layers", "autoep_layers"}) {
        const auto layers = root.find(experts);
        if (layers && !layers->is_none()) return is_foreign(first, "experts that are spread over ranks are not read");
      }
      // an optimizer's state here means that ZeRO is off: with ZeRO it has files of its own
      const auto optimizer = root.find("optimizer");
      if (optimizer && !optimizer->is_none()) return is_foreign(first, "checkpoints without ZeRO are not read");
      if (const auto world = number_of(root.find("dp_world_size"))) expect_ranks(*world);
      read_groups(*first, root.find("param_shapes"));
      read_frozen_shapes(*first, root.find("frozen_param_shapes"));
      read_fragments(*first, 0, file);
      read_buffers(*first, file);
      read_tied(root.find("shared_params"));
      if (found_.common_model) read_compute(*first, file);
      read = true;
    });
    return read;
  }

  // Notes a layout that is not read. Reading it as a known one would join the wrong parts.
  void is_foreign(std::optional<uint32_t> file, const std::string& reason,
                  Problem::Kind kind = Problem::Kind::unreadable) {
    foreign_ = true;
    problem(file, reason, kind);
  }

  TensorMap nothing() {
    map_.parameters.clear();
    map_.tied.clear();
    return std::move(map_);
  }

  // Lists the swap files by themselves: a step that only `save` made has nothing that names their parameters.
  void leave_undivided() {
    for (unsigned number = 0; number < ranks_.size(); ++number) {
      for (const auto& [name, index] : ranks_[number].swapped) {
        const auto group = parse_group_name(name);
        map_.undivided.push_back({group->first, group->last, number, group->state, index});
      }
    }
  }

  void expect_ranks(int64_t count) {
    // Each rank must have at least one file.
    if (count <= 0 || static_cast<uint64_t>(count) > files_.list().size()) {
      return is_foreign(std::nullopt, "it is of " + std::to_string(count) + " ranks, of which not all have files here",
                        count <= 0 || node_local_ ? Problem::Kind::unreadable : Problem::Kind::missing);
    }
    const auto world = static_cast<size_t>(count);
    if (ranks_.size() > world) {
      left_out(std::nullopt, "files of more than its " + std::to_string(world) + " ranks lie here, of another save");
    }
    ranks_.resize(world);
  }

  // Returns a parameter's name and shape. If they are invalid, it adds a problem and returns nothing.
  std::optional<Member> member_of(uint32_t file, const std::pair<Value, Value>& told, const char* where) {
    const auto name = short_text(told.first);
    auto shape = shape_of(told.second);
    if (!name || !shape) {
      problem(file, std::string(where) + ": the shape of a parameter cannot be one");
      return std::nullopt;
    }
    const uint64_t elements = *elements_of(*shape);
    return Member{std::string(*name), *std::move(shape), elements, 0};
  }

  void read_groups(uint32_t file, const std::optional<Value>& shapes) {
    if (!shapes) return problem(file, "it has no param_shapes");
    for (size_t at = 0; at < shapes->size(); ++at) {
      Group group;
      const Value dict = (*shapes)[at];
      for (size_t member = 0; member < dict.pairs(); ++member) {
        auto known = member_of(file, dict.pair(member), "param_shapes");
        if (!known) foreign_ = true;
        if (!known || !has_room_for(*known)) return;
        group.part += divide_up(known->elements, ranks_.size());
        group.members.push_back(*std::move(known));
      }
      if (!has_room(sizeof(Group))) return;
      groups_.push_back(std::move(group));
    }
  }

  void read_frozen_shapes(uint32_t file, const std::optional<Value>& shapes) {
    for (size_t at = 0; shapes && at < shapes->pairs(); ++at) {
      auto known = member_of(file, shapes->pair(at), "frozen_param_shapes");
      if (!known) continue;
      if (!has_room_for(*known)) return;
      frozen_.push_back(*std::move(known));
    }
  }

  // Reads this rank's parts of the frozen parameters.
  void read_fragments(uint32_t index, unsigned rank_number, TorchFile& file) {
    const auto fragments = by_name(file.root().find("frozen_param_fragments"));
    for (const Member& member : frozen_) {
      const auto fragment = fragments.find(member.name);
      if (fragment == fragments.end()) {
        left_out(index, "frozen_param_fragments lacks " + member.name);
        continue;
      }
      Flats& flats = fragments_[member.name];
      const size_t parts = found_.common_model ? 1 : ranks_.size();
      if (flats.empty() && !has_room(parts * sizeof(Flats::value_type))) return;
      flats.resize(parts);
      flats[rank_number] = flat_of(index, file, fragment->second, "frozen parameter " + member.name);
    }
  }

  // Reads the other ranks' model_states.pt for their parts of frozen parameters, and reports those that do not exist.
  void read_other_models() {
    if (found_.common_model) return;
    for (unsigned number = 1; number < ranks_.size(); ++number) {
      const auto model = ranks_[number].model;
      if (!model) {
        lacks_file(number, "model_states.pt");
        continue;
      }
      with_file(*model, [&](TorchFile& file) { read_fragments(*model, number, file); });
    }
  }

  // With node-local storage the file is on another machine, so it is not reported as missing.
  void lacks_file(unsigned number, const std::string& name) {
    const auto kind = node_local_ ? Problem::Kind::unreadable : Problem::Kind::missing;
    problem(std::nullopt, "rank " + std::to_string(number) + " has no " + name, kind);
  }

  void read_buffers(uint32_t index, TorchFile& file) {
    const auto names = file.root().find("buffer_names");
    const auto module = by_name(file.root().find("module"));
    for (size_t at = 0; names && at < names->size(); ++at) {
      const auto name = short_text((*names)[at]);
      const auto value = name ? module.find(*name) : module.end();
      if (value == module.end()) {
        left_out(index, "module lacks a buffer that buffer_names has");
        continue;
      }
      if (auto tensor = whole(index, file, value->second, "buffer " + std::string(*name))) {
        if (!add_whole(*name, Parameter::Kind::buffer, *std::move(tensor))) return;
      }
    }
  }

  // Returns false if the budget does not allow it.
  bool add_whole(std::string_view name, Parameter::Kind kind, Tensor tensor) {
    Parameter parameter{std::string(name), kind, std::nullopt, {}};
    parameter.states.emplace(kCompute, std::move(tensor));
    if (!has_room(parameter)) return false;
    map_.parameters.push_back(std::move(parameter));
    return true;
  }

  // Returns a tensor of which one file holds all elements.
  std::optional<Tensor> whole(uint32_t index, TorchFile& file, const Value& value, const std::string& what) {
    const auto flat = flat_of(index, file, value, what);
    if (!flat) return std::nullopt;
    return Tensor{flat->dtype, TorchFile::tensor(value).value()->shape, {flat->piece}};
  }

  void read_tied(const std::optional<Value>& shared) {
    for (size_t at = 0; shared && at < shared->pairs(); ++at) {
      const auto pair = shared->pair(at);
      const auto name = short_text(pair.first), same_as = short_text(pair.second);
      if (!name || !same_as) continue;
      if (!has_room(sizeof(Tied) + name->size() + same_as->size())) return;
      map_.tied.push_back({std::string(*name), std::string(*same_as)});
    }
  }

  // Stages 1 and 2: the model has each parameter in one piece. In stage 1 frozen parameters are named nowhere else.
  void read_compute(uint32_t index, TorchFile& file) {
    const auto named = by_name(file.root().find("module"));
    std::set<std::string_view> known;
    for (const Group& group : groups_) {
      for (const Member& member : group.members) {
        known.insert(member.name);
        const auto value = named.find(member.name);
        if (value == named.end()) continue;
        auto tensor = whole(index, file, value->second, member.name);
        if (!tensor) continue;
        if (!has_room(*tensor)) return;
        compute_.emplace(member.name, *std::move(tensor));
      }
    }
    for (const Member& member : frozen_) known.insert(member.name);
    for (const Tied& tied : map_.tied) known.insert(tied.name);
    const auto module = file.root().find("module");
    std::set<std::string, std::less<>> buffers;
    for (const Parameter& buffer : map_.parameters) buffers.insert(buffer.name);
    for (size_t at = 0; module && at < module->pairs(); ++at) {
      const auto name = short_text(module->pair(at).first);
      if (!name || buffers.contains(*name) || !known.insert(*name).second) continue;
      auto tensor = whole(index, file, named.at(*name), std::string(*name));
      if (tensor && !add_whole(*name, Parameter::Kind::frozen, *std::move(tensor))) return;
    }
  }

  void read_config(const std::optional<Value>& config) {
    const auto enabled = [&](std::string_view kind) {
      const auto value = find(find(config, kind), "enabled");
      return value && value->boolean() == true;
    };
    map_.computes_in = enabled("bf16") || enabled("bfloat16") ? Dtype::bfloat16
                       : enabled("fp16")                      ? Dtype::float16
                                                              : Dtype::float32;
    const auto device = find(find(find(config, "zero_optimization"), "offload_optimizer"), "device");
    swaps_ = device && device->text() == "nvme";
    const auto local = find(find(config, "checkpoint"), "use_node_local_storage");
    node_local_ = local && local->boolean() == true;
    const auto block = number_of(find(find(config, "aio"), "block_size"));
    if (block && *block > 0) smallest_swapped_ = std::max(smallest_swapped_, static_cast<uint64_t>(*block));
  }

  void read_optimizer(unsigned number) {
    const auto index = ranks_[number].optimizer;
    if (!index) return lacks_file(number, "optim_states.pt");
    with_file(*index, [&](TorchFile& file) {
      const auto state = file.root().find("optimizer_state_dict");
      const auto stage = number_of(find(state, "zero_stage"));
      if (!stage || *stage < 1 || *stage > 3) return problem(*index, "it is of no stage of ZeRO from 1 to 3");
      const auto partitions = largest_of(find(state, "partition_count"));
      if (find(state, "ds_zero_partition_groups")) {
        return is_foreign(*index, "experts that are spread over ranks are not read");
      }
      if (stage_ != 0 && stage_ != static_cast<unsigned>(*stage))
        return is_foreign(*index, "its stage is not rank 0's");
      if (partitions && *partitions != static_cast<int64_t>(ranks_.size())) {
        return is_foreign(*index, "it is one of " + std::to_string(*partitions) + " ranks, and there are " +
                                      std::to_string(ranks_.size()));
      }
      stage_ = static_cast<unsigned>(*stage);
      if (stage_ == 3) {
        read_sub_groups(*index, number, file, *state);
      } else {
        read_partitions(*index, number, file, *state);
      }
    });
  }

  // Keeps one rank's part of a state.
  void keep(Group& group, const std::string& state, unsigned number, const Flat& flat) {
    Flats& flats = group.states[state];
    if (flats.empty() && !has_room(ranks_.size() * sizeof(Flats::value_type))) return;
    if (group.states.size() > kMostStates) return is_foreign(std::nullopt, "it has too many states");
    flats.resize(ranks_.size());
    flats[number] = flat;
  }

  // Reads the groups of stage 3.
  void read_sub_groups(uint32_t index, unsigned number, TorchFile& file, const Value& state) {
    const auto masters = state.find("fp32_flat_groups");
    const auto states = by_number(find(state.find("optimizer_state_dict"), "state"), groups_.size());
    if (!masters || masters->size() != groups_.size()) {
      return problem(index, "it has not the groups that param_shapes of rank 0 has");
    }
    const SwappedStates swapped = swapped_states(number);
    for (size_t at = 0; at < groups_.size() && !foreign_; ++at) {
      Group& group = groups_[at];
      const Value master = (*masters)[at];
      const auto name = group_name(master);
      if (name && !group.name) group.name = parse_group_name(*name + ".tensor.swp");
      const auto files = name ? swapped.find(*name) : swapped.end();
      const bool on_disk = files != swapped.end() && std::ranges::any_of(files->second, is_master);
      if (on_disk) {
        read_swapped(number, group, files->second);
        expect_swapped(index, number, *name, states[at]);
      } else if (swaps_ && group.part * size_of(Dtype::float32) >= smallest_swapped_) {
        // It does not fall back to optim_states.pt, which may contain a recycled buffer.
        missing(index, "the swap file " + name.value_or("of a group") + ".tensor.swp is not there");
      } else {
        const auto flat = flat_of(index, file, master, "fp32_flat_groups");
        if (flat) keep(group, kMaster, number, *flat);
        if (flat) read_states(index, number, file, group, *flat, states[at]);
      }
    }
  }

  // Returns "0_6", the ds_ids of the group's first and last parameter. DeepSpeed sets this attribute on the tensor.
  static std::optional<std::string> group_name(const Value& master) {
    const auto tensor = TorchFile::tensor(master);
    if (!tensor || !tensor.value()) return std::nullopt;
    const auto text = short_text(field(tensor.value()->attributes, "ds_id"));
    return text ? std::optional(std::string(*text)) : std::nullopt;
  }

  static bool is_master(const SwappedState& swapped) { return swapped.state == kMaster; }

  // Returns the rank's swap files by group: "0_6.tensor.swp" and "exp_avg-0_6.tensor.swp" are of group "0_6".
  SwappedStates swapped_states(unsigned number) const {
    constexpr std::string_view suffix = ".tensor.swp";
    SwappedStates found;
    for (const auto& [file_name, index] : ranks_[number].swapped) {
      const size_t dash = file_name.find('-');
      std::string_view group = std::string_view(file_name).substr(dash == std::string::npos ? 0 : dash + 1);
      group.remove_suffix(suffix.size());
      found[group].push_back({parse_group_name(file_name)->state, index});
    }
    return found;
  }

  void read_swapped(unsigned number, Group& group, const std::vector<SwappedState>& swapped) {
    const uint64_t size = group.part * size_of(Dtype::float32);
    for (const auto& [state, index] : swapped) {
      if (files_.list()[index].size < size) {
        missing(index, "it has fewer than the " + std::to_string(size) + " bytes of its parameters");
        continue;
      }
      keep(group, state, number, Flat{{index, 0, size}, Dtype::float32});
    }
  }

  // Adam's moments must be swapped like the weights, if optim_states.pt names them or any other group has swapped them.
  void expect_swapped(uint32_t index, unsigned number, const std::string& name, const std::optional<Value>& kept) {
    for (size_t at = 0; at < kMoments.size(); ++at) {
      const std::string state(kMoments.at(at)), file = state + "-" + name + ".tensor.swp";
      if (ranks_[number].swapped.contains(file)) continue;
      if (moments_swapped_.at(at) || field(kept, state)) missing(index, "the swap file " + file + " is not there");
    }
  }

  // Returns, for each moment, whether any rank has swapped it for any group.
  std::array<bool, kMoments.size()> find_moments() const {
    std::array<bool, kMoments.size()> found{};
    for (const RankFiles& rank : ranks_) {
      for (const auto& [file_name, index] : rank.swapped) {
        const std::string_view state = std::string_view(file_name).substr(0, file_name.find('-'));
        const auto* const moment = std::find(kMoments.begin(), kMoments.end(), state);
        if (moment != kMoments.end()) found.at(static_cast<size_t>(moment - kMoments.begin())) = true;
      }
    }
    return found;
  }

  // Reads the optimizer's states that have a value for each element of the group and are in memory.
  void read_states(uint32_t index, unsigned number, TorchFile& file, Group& group, const Flat& master,
                   const std::optional<Value>& state) {
    for (size_t at = 0; state && at < std::min(state->pairs(), kMostStates); ++at) {
      const auto [key, value] = state->pair(at);
      const auto name = short_text(key);
      const auto tensor = TorchFile::tensor(value);
      const bool is_state = name && tensor && tensor.value() && !tensor.value()->shape.empty();
      if (!is_state || tensor.value()->elements() < master.elements()) continue;
      if (auto flat = flat_of(index, file, value, std::string(*name))) keep(group, std::string(*name), number, *flat);
    }
  }

  // Reads the partitions of stages 1 and 2.
  void read_partitions(uint32_t index, unsigned number, TorchFile& file, const Value& state) {
    const auto masters = state.find("single_partition_of_fp32_groups");
    const auto base = state.find("base_optimizer_state");
    if (!masters || masters->size() != groups_.size()) {
      return problem(index, "it has not the groups that param_shapes of rank 0 has");
    }
    if (number == 0) read_paddings(state.find("param_alignment_paddings"));
    const auto numbered = find(base, "state");
    const auto states = by_number(numbered, groups_.size());
    for (size_t at = 0; at < groups_.size() && !foreign_; ++at) {
      Group& group = groups_[at];
      const auto flat = flat_of(index, file, (*masters)[at], "single_partition_of_fp32_groups");
      if (!flat) continue;
      keep(group, kMaster, number, *flat);
      const bool listed = base && !numbered && at < base->size();  // elastic checkpoints have a list
      read_states(index, number, file, group, *flat, listed ? std::optional((*base)[at]) : states[at]);
    }
  }

  void read_paddings(const std::optional<Value>& paddings) {
    for (size_t at = 0; paddings && at < std::min(paddings->size(), groups_.size()); ++at) {
      const Value of_group = (*paddings)[at];
      std::vector<Member>& members = groups_[at].members;
      for (size_t member = 0; member < std::min(of_group.size(), members.size()); ++member) {
        const auto padding = of_group[member].integer();
        if (padding && *padding > 0) members[member].padding = static_cast<uint64_t>(*padding);
      }
    }
  }

  void read_ids() {
    if (!found_.ids) return;
    for (const Group& group : groups_) {
      for (const Member& member : group.members) known_ids_.emplace(member.name, std::nullopt);
    }
    for (const Member& member : frozen_) known_ids_.emplace(member.name, std::nullopt);
    IdsReader reader(known_ids_);
    const auto file = files_.open(*found_.ids);
    const uint64_t size = files_.list()[*found_.ids].size;
    const auto read = file ? io::read_json(files_.limited(file.value()), 0, size, kIdsBounds, reader) : file.error();
    if (!read) left_out(*found_.ids, read.error().message());
  }
  std::optional<uint64_t> id_of(const std::string& name) const {
    const auto known = known_ids_.find(name);
    return known == known_ids_.end() ? std::nullopt : known->second;
  }

  // Adds the group's parameters, each with those of its states that are complete.
  void compose(Group& group) {
    if (group.members.empty()) return;
    const size_t first = map_.parameters.size();
    for (const Member& member : group.members) {
      Parameter parameter{member.name, Parameter::Kind::trained, std::nullopt, {}};
      if (!has_room(parameter)) return;
      map_.parameters.push_back(std::move(parameter));
    }
    const auto of_group = std::span(map_.parameters).subspan(first);
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

  void compose_state(const Group& group, const std::string& state, const Flats& flats,
                     std::span<Parameter> parameters) {
    for (size_t number = 0; number < flats.size(); ++number) {
      if (!flats[number]) {
        const bool unread = told_[static_cast<size_t>(Problem::Kind::unreadable)];
        return problem(std::nullopt,
                       state + " of " + group.members.front().name + " and what lies with it: rank " +
                           std::to_string(number) + " has none",
                       unread ? Problem::Kind::unreadable : Problem::Kind::missing);
      }
    }
    for (const auto& flat : flats) {
      if (stage_ == 3 && flat->elements() != group.part) {
        return problem(flat->piece.file, state + " has not the length of its parameters");
      }
    }
    uint64_t at = 0;  // in elements of each rank's part (stage 3), or of all parts end to end
    std::vector<Tensor> tensors;
    const Ends ends = stage_ == 3 ? Ends() : ends_of(flats);
    for (const Member& member : group.members) {
      // joined() visits each rank for each parameter.
      if (stage_ == 3 && !has_room(flats.size() * sizeof(Piece))) return;
      auto tensor = stage_ == 3 ? joined(member, flats, at) : cut_out(member, flats, ends, at);
      if (!tensor) return problem(flats.front()->piece.file, state + " ends within " + member.name);
      if (!has_room(*tensor)) return;
      tensors.push_back(std::move(*tensor));
      at += stage_ == 3 ? divide_up(member.elements, flats.size()) : member.elements + member.padding;
    }
    for (size_t member = 0; member < tensors.size(); ++member) {
      parameters[member].states.emplace(state, std::move(tensors[member]));
    }
  }

  // Adds the parameter in the type that the model computes with, if a file has it.
  void compose_compute(Parameter& parameter) {
    if (auto found = compute_.extract(parameter.name)) {
      parameter.states.emplace(kCompute, std::move(found.mapped()));
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
    if (!has_room(ranks_.size() * sizeof(Flats::value_type))) return;
    for (const RankFiles& files : ranks_) {
      const auto file = files.params.find(*parameter.ds_id);
      if (file == files.params.end()) return;
      flats.emplace_back(Flat{{file->second, 0, files_.list()[file->second].size}, *map_.computes_in});
    }
    if (auto tensor = joined(member, flats, 0)) parameter.states.emplace(kCompute, std::move(*tensor));
  }

  void compose_frozen() {
    for (const Member& member : frozen_) {
      Parameter parameter{member.name, Parameter::Kind::frozen, std::nullopt, {}};
      parameter.ds_id = id_of(member.name);
      const Flats& flats = fragments_[member.name];
      const bool whole = !flats.empty() && std::all_of(flats.begin(), flats.end(), [](const auto& f) { return !!f; });
      auto tensor = whole ? joined(member, flats, 0) : std::nullopt;
      if (tensor) {
        parameter.states.emplace(kCompute, *std::move(tensor));
      } else {
        left_out(std::nullopt, "frozen parameter " + member.name +
                                   " is not all there (DeepSpeed leaves one that it swaps to NVMe out of checkpoints)");
      }
      if (!has_room(parameter)) return;
      map_.parameters.push_back(std::move(parameter));
    }
  }

  const StepFiles& files_;
  DeepSpeedFiles found_;
  std::vector<RankFiles>& ranks_ = found_.ranks;
  TensorMap map_;
  MapBudget budget_;
  std::array<bool, kMoments.size()> moments_swapped_ = find_moments();
  std::map<std::string_view, std::optional<uint64_t>> known_ids_;  // of the parameters, by name
  unsigned stage_ = 0;                                             // 0 if no optim_states.pt was read
  bool foreign_ = false;
  bool swaps_ = false;  // the optimizer is on NVMe
  bool node_local_ = false;
  std::array<bool, 3> told_{};  // for each kind, whether there is such a problem
  uint64_t smallest_swapped_ = kSmallestSwapped;
  std::vector<Group> groups_;
  std::vector<Member> frozen_;
  std::map<std::string, Flats> fragments_;  // parts of frozen parameters
  std::map<std::string, Tensor> compute_;   // stages 1 and 2
};

}  // namespace

bool is_deepspeed_file(std::string_view path) {
  return parse_states_name(path).has_value() || path.starts_with("offloaded_tensors/");
}

bool is_deepspeed(const StepFiles& files, const std::string& folder) {
  return std::any_of(files.list().begin(), files.list().end(), [&](const StepFiles::File& file) {
    return file.path.starts_with(folder) && is_deepspeed_file(std::string_view(file.path).substr(folder.size()));
  });
}

TensorMap read_deepspeed(const StepFiles& files, const std::string& folder) { return Reader(files, folder).read(); }

}  // namespace ckptfs::meta::formats
