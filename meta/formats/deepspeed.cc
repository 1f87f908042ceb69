#include "meta/formats/deepspeed.h"

#include <algorithm>
#include <deque>
#include <set>
#include <span>
#include <utility>

#include "io/json.h"
#include "meta/formats/deepspeed_compose.h"
#include "meta/formats/deepspeed_experts.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/deepspeed_optimizer.h"
#include "meta/formats/deepspeed_pipeline.h"
#include "meta/formats/deepspeed_step.h"
#include "meta/formats/map_builder.h"
#include "meta/formats/pickle_access.h"
#include "meta/formats/tensor_parallel.h"
#include "meta/formats/torch_file.h"

namespace ckptfs::meta::formats {
namespace {

using Value = Pickle::Value;

constexpr io::JsonBounds kIdsBounds{
    .bytes = uint64_t{16} << 20, .values = io::kAnyNumber, .text = uint64_t{64} << 10, .depth = 8};

// Reads what our Python helper leaves with a checkpoint: the ds_id of each parameter, {"layers.0.weight": 3, ...}.
// Fills in the ids of those parameters that `ids` has.
class IdsReader : public io::JsonVisitor {
 public:
  explicit IdsReader(ParameterIds& ids) : ids_(ids) {}

  bool number_unsigned(number_unsigned_t id) override {
    const auto known = depth_ == 1 ? ids_.find(key_) : ids_.end();
    if (known != ids_.end()) known->second = id;
    return true;
  }

 private:
  bool begin(bool object) override {
    return object || depth_ > 1 || fails(Error(EBADMSG, "it is no map of names to numbers"));
  }

  ParameterIds& ids_;
};

// Reads what the ranks have saved that have the same part of a model: all of it, or a stage of a pipeline, or a tensor
// parallel rank's.
class ModelRank {
 public:
  ModelRank(DeepSpeedStep& step, PipelineLayers& layers, unsigned number)
      : step_(step), layers_(layers), number_(number) {}

  // False: there is no model_states.pt that can be read. With foreign files what is joined would be wrong.
  bool read() {
    if (!read_first_model()) return false;
    if (builder_.is_given_up() || is_undivided_) return true;
    const auto goes_on = [this] { return !is_share_ || !builder_.is_given_up(); };
    for (unsigned rank = 0; rank < ranks_.size() && goes_on(); ++rank) {
      const auto index = ranks_[rank].optimizer;
      index ? optimizer_.read(rank, *index) : lacks_file(rank, "optim_states.pt");
    }
    if (!builder_.is_given_up()) read_other_models();
    if (excludes_frozen_ && parts_.stage >= 2) builder_.left_out(first_model(), kExcludesFrozen);
    if (builder_.is_given_up()) return true;
    if (is_pipeline_) layers_.read_stage(parts_, buffers_);
    if (experts_.any()) experts_.read(parts_);
    return true;
  }

  // Adds the parameters to the map.
  void compose() {
    if (!builder_.is_given_up() && model_world_ == 1) read_ids();
    if (!builder_.is_given_up()) formats::compose(parts_, ranks_, builder_);
  }

  // It has no file here that tells of it. `like`: another one that has.
  void lacks_all(const ModelRank& like) {
    ranks_.resize(like.ranks_.size());
    if (like.found_.common_model && !found_.common_model) {
      const std::string name = model_rank_name(number_) + "_model_states.pt";
      step_.lacks(name, name + " is not there");
    }
    for (unsigned rank = 0; rank < ranks_.size(); ++rank) {
      if (!like.found_.common_model && !ranks_[rank].model) lacks_file(rank, "model_states.pt");
      if (!ranks_[rank].optimizer) lacks_file(rank, "optim_states.pt");
    }
  }

  int64_t model_world() const { return model_world_; }
  size_t ranks() const { return ranks_.size(); }
  bool is_pipeline() const { return is_pipeline_; }
  bool has_swapped() const {
    return std::ranges::any_of(ranks_,
                               [](const RankFiles& rank) { return !rank.swapped.empty() || !rank.params.empty(); });
  }
  bool has_nothing() const { return parts_.groups.empty() && parts_.frozen.empty(); }
  // Is it of the same save, as far as it tells?
  bool is_like(const ModelRank& other) const {
    return model_world_ == other.model_world_ && is_pipeline_ == other.is_pipeline_ &&
           ranks_.size() == other.ranks_.size() && global_steps_ == other.global_steps_;
  }
  const TensorCuts& cuts() const { return cuts_; }

 private:
  // The model_states.pt that lists the parameters: that of the first rank.
  std::optional<uint32_t> first_model() const {
    if (found_.common_model || ranks_.empty()) return found_.common_model;
    if (!is_share_) return ranks_[0].model;
    const auto first = std::ranges::find_if(ranks_, [](const RankFiles& rank) { return rank.model.has_value(); });
    return first == ranks_.end() ? std::nullopt : first->model;
  }

  // Reads the model_states.pt of the first rank.
  bool read_first_model() {
    const auto first = first_model();
    if (!first) return false;
    bool read = false;
    builder_.with_file(*first, [&](TorchFile& file) {
      const Value root = file.root();
      read_config(root.find("ds_config"));
      model_world_ = number_of(root.find("mp_world_size")).value_or(1);
      global_steps_ = number_of(root.find("global_steps"));
      for (const char* const experts : {"ds_autoep_layers", "autoep_layers"}) {
        const auto layers = root.find(experts);
        if (layers && !layers->is_none())
          return builder_.give_up(first, "experts that are spread over ranks are not read");
      }
      experts_.expect(root.find("num_experts"), root.find("ds_config"));
      const auto module = root.find("module");  // a pipeline's is None, and lies in a file of each layer
      is_pipeline_ = module && module->is_none();
      if (experts_.any() && (is_pipeline_ || model_world_ != 1))
        return builder_.give_up(first, "experts of a model that is spread itself are not read");
      if (model_world_ != 1 && !is_pipeline_ && number_ == 0)
        cuts_ = cuts_of(root.find("universal_checkpoint_info"), builder_);
      const auto optimizer = root.find("optimizer");  // with ZeRO it is None here, and has files of its own
      is_undivided_ = optimizer && !optimizer->is_none();
      if (is_undivided_ && (is_pipeline_ || experts_.any() || model_world_ != 1))
        return builder_.give_up(first, "a model that is spread, and no optimizer of ZeRO, is not read");
      if (is_undivided_) return read_undivided(*first, file);
      if (const auto world = number_of(root.find("dp_world_size"))) expect_ranks(*world);
      read_groups(*first, root.find("param_shapes"));
      const auto frozen = root.find("frozen_param_shapes");
      excludes_frozen_ = frozen && frozen->is_none();
      read_frozen_shapes(*first, frozen);
      read_fragments(*first, 0, file);
      read_buffers(*first, file);
      if (number_ == 0 || is_pipeline_) read_tied(root.find("shared_params"));
      if (found_.common_model) read_compute(*first, file);
      read = true;
    });
    return read || is_undivided_;
  }

  // Stage 0: each rank has all of the model, one of them has written it, and the optimizer knows parameters by numbers.
  void read_undivided(uint32_t index, TorchFile& file) {
    const auto has_optimizer = [](const RankFiles& rank) { return rank.optimizer.has_value(); };
    if (std::ranges::any_of(ranks_, has_optimizer)) return builder_.give_up(index, "its optimizer is there twice");
    read_buffers(index, file);
    std::set<std::string, std::less<>> buffers;
    for (const Parameter& buffer : own_parameters()) buffers.insert(buffer.name);
    const auto module = file.root().find("module");
    for (size_t at = 0; module && at < module->pairs(); ++at) {
      const auto [key, value] = module->pair(at);
      const auto name = short_text(key);
      if (!name || buffers.contains(*name)) continue;
      auto tensor = builder_.whole(index, file, value, std::string(*name));
      if (tensor && !builder_.add_whole(*name, Parameter::Kind::trained, *std::move(tensor))) return;
    }
  }

  void expect_ranks(int64_t count) {
    // Each rank must have at least one file.
    const uint64_t most = is_share_ ? kMostRanks : files_.list().size();
    if (count <= 0 || static_cast<uint64_t>(count) > most) {
      return builder_.give_up(std::nullopt,
                              "it is of " + std::to_string(count) + " ranks, of which not all have files here",
                              count <= 0 || step_.node_local ? Problem::Kind::unreadable : Problem::Kind::missing);
    }
    const auto world = static_cast<size_t>(count);
    if (ranks_.size() > world) {
      builder_.left_out(std::nullopt,
                        "files of more than its " + std::to_string(world) + " ranks lie here, of another save");
    }
    ranks_.resize(world);
  }

  // Returns a parameter's name and shape. If they are invalid, it adds a problem and returns nothing.
  std::optional<Member> member_of(uint32_t file, const std::pair<Value, Value>& told, const char* where) {
    const auto name = short_text(told.first);
    auto shape = shape_of(told.second);
    if (!name || !shape) {
      builder_.problem(file, std::string(where) + ": the shape of a parameter cannot be one");
      return std::nullopt;
    }
    const uint64_t elements = *elements_of(*shape);
    return Member{std::string(*name), *std::move(shape), elements, 0};
  }

  void read_groups(uint32_t file, const std::optional<Value>& shapes) {
    if (!shapes) return builder_.problem(file, "it has no param_shapes");
    for (size_t at = 0; at < shapes->size(); ++at) {
      ParameterGroup group;
      const Value dict = (*shapes)[at];
      for (size_t member = 0; member < dict.pairs(); ++member) {
        auto known = member_of(file, dict.pair(member), "param_shapes");
        if (!known) builder_.give_up();
        if (!known || !builder_.has_room_for(*known)) return;
        group.part += divide_up(known->elements, ranks_.size());
        group.members.push_back(*std::move(known));
      }
      if (!builder_.has_room(sizeof(ParameterGroup))) return;
      group.holders = ranks_.size();
      parts_.groups.push_back(std::move(group));
    }
    parts_.told_groups = parts_.groups.size();
  }

  void read_frozen_shapes(uint32_t file, const std::optional<Value>& shapes) {
    for (size_t at = 0; shapes && at < shapes->pairs(); ++at) {
      auto known = member_of(file, shapes->pair(at), "frozen_param_shapes");
      if (!known) continue;
      if (!builder_.has_room_for(*known)) return;
      parts_.frozen.push_back(*std::move(known));
    }
  }

  // Reads this rank's parts of the frozen parameters.
  void read_fragments(uint32_t index, unsigned rank_number, TorchFile& file) {
    if (is_share_) return;  // no frozen parameter is put together
    const auto fragments = by_name(file.root().find("frozen_param_fragments"));
    for (const Member& member : parts_.frozen) {
      const auto fragment = fragments.find(member.name);
      if (fragment == fragments.end()) {
        builder_.left_out(index, "frozen_param_fragments lacks " + member.name);
        continue;
      }
      Flats& flats = parts_.fragments[member.name];
      const size_t parts = found_.common_model ? 1 : ranks_.size();
      if (flats.empty() && !builder_.has_room(parts * sizeof(Flats::value_type))) return;
      flats.resize(parts);
      flats[rank_number] = builder_.flat_of(index, file, fragment->second, "frozen parameter " + member.name);
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
      builder_.with_file(*model, [&](TorchFile& file) { read_fragments(*model, number, file); });
    }
  }

  void lacks_file(unsigned rank, const char* ending) {
    const std::string whose = model_world_ == 1 ? "" : " of model rank " + std::to_string(number_);
    const std::string of_rank = std::to_string(rank);
    step_.lacks("zero_pp_rank_" + of_rank + "_" + model_rank_name(number_) + "_" + ending,
                "rank " + of_rank + whose + " has no " + ending);
  }

  void read_buffers(uint32_t index, TorchFile& file) {
    const auto names = file.root().find("buffer_names");
    const auto module = by_name(file.root().find("module"));
    for (size_t at = 0; names && at < names->size(); ++at) {
      const auto name = short_text((*names)[at]);
      if (is_pipeline_) {
        if (name && builder_.has_room(sizeof(std::string) + name->size())) buffers_.emplace_back(*name);
        continue;
      }
      const auto value = name ? module.find(*name) : module.end();
      if (value == module.end()) {
        builder_.left_out(index, "module lacks a buffer that buffer_names has");
        continue;
      }
      if (auto tensor = builder_.whole(index, file, value->second, "buffer " + std::string(*name))) {
        if (!builder_.add_whole(*name, Parameter::Kind::buffer, *std::move(tensor))) return;
      }
    }
  }

  void read_ids() {
    const auto ids = step_.found.ids;
    if (!ids) return;
    for (const ParameterGroup& group : parts_.groups) {
      for (const Member& member : group.members) parts_.ids.emplace(member.name, std::nullopt);
    }
    for (const Member& member : parts_.frozen) parts_.ids.emplace(member.name, std::nullopt);
    IdsReader reader(parts_.ids);
    const auto file = files_.open(*ids);
    const uint64_t size = files_.list()[*ids].size;
    const auto read = file ? io::read_json(files_.limited(file.value()), 0, size, kIdsBounds, reader) : file.error();
    if (!read) builder_.left_out(*ids, read.error().message());
  }

  void read_tied(const std::optional<Value>& shared) {
    for (size_t at = 0; shared && at < shared->pairs(); ++at) {
      const auto pair = shared->pair(at);
      const auto name = short_text(pair.first), same_as = short_text(pair.second);
      if (!name || !same_as) continue;
      if (!builder_.has_room(sizeof(Tied) + name->size() + same_as->size())) return;
      builder_.map().tied.push_back({std::string(*name), std::string(*same_as)});
    }
  }

  // Stages 1 and 2: the model has each parameter in one piece. In stage 1 frozen parameters are named nowhere else.
  void read_compute(uint32_t index, TorchFile& file) {
    const auto named = by_name(file.root().find("module"));
    std::set<std::string_view> known;
    for (const ParameterGroup& group : parts_.groups) {
      for (const Member& member : group.members) {
        known.insert(member.name);
        const auto value = named.find(member.name);
        if (value == named.end()) continue;
        auto tensor = builder_.whole(index, file, value->second, member.name);
        if (!tensor) continue;
        if (!builder_.has_room(*tensor)) return;
        parts_.compute.emplace(member.name, *std::move(tensor));
      }
    }
    for (const Member& member : parts_.frozen) known.insert(member.name);
    for (const Tied& tied : builder_.map().tied) known.insert(tied.name);
    const auto module = file.root().find("module");
    std::set<std::string, std::less<>> buffers;
    for (const Parameter& buffer : own_parameters()) buffers.insert(buffer.name);
    for (size_t at = 0; module && at < module->pairs(); ++at) {
      const auto name = short_text(module->pair(at).first);
      if (!name || buffers.contains(*name) || !known.insert(*name).second) continue;
      auto tensor = builder_.whole(index, file, named.at(*name), std::string(*name));
      if (tensor && !builder_.add_whole(*name, Parameter::Kind::frozen, *std::move(tensor))) return;
    }
  }

  void read_config(const std::optional<Value>& config) {
    const auto enabled = [&](std::string_view kind) {
      const auto value = find(find(config, kind), "enabled");
      return value && value->boolean() == true;
    };
    builder_.map().computes_in = enabled("bf16") || enabled("bfloat16") ? Dtype::bfloat16
                                 : enabled("fp16")                      ? Dtype::float16
                                                                        : Dtype::float32;
    const auto local = find(find(config, "checkpoint"), "use_node_local_storage");
    step_.node_local = local && local->boolean() == true;
    optimizer_.read_config(config);
  }

  // Those of this rank that are in the map by now.
  std::span<const Parameter> own_parameters() const { return std::span(builder_.map().parameters).subspan(begin_); }

  DeepSpeedStep& step_;
  PipelineLayers& layers_;
  const unsigned number_;
  MapBuilder& builder_ = step_.builder;
  const StepFiles& files_ = builder_.files();
  const bool is_share_ = step_.is_share;
  ModelRankFiles& found_ = step_.found.model_ranks[number_];
  std::vector<RankFiles>& ranks_ = found_.ranks;
  const size_t begin_ = builder_.map().parameters.size();  // of its parameters in the map
  DeepSpeedParts parts_;
  Experts experts_{step_};
  OptimizerStates optimizer_{step_, found_, experts_, parts_};
  TensorCuts cuts_;
  std::vector<std::string> buffers_;  // names, of a pipeline's stage
  int64_t model_world_ = 1;
  std::optional<int64_t> global_steps_;
  bool is_pipeline_ = false;
  bool is_undivided_ = false;  // there is no ZeRO: one file has it all
  bool excludes_frozen_ = false;
};

class Reader {
 public:
  Reader(const StepFiles& files, const std::string& folder, const MapOptions& options)
      : step_(files, folder, options) {}

  TensorMap read() {
    if (!read_model_ranks()) {
      leave_undivided();
      return std::move(builder_.map());
    }
    if (!builder_.is_given_up() && ranks_.size() > 1) join();
    if (builder_.is_given_up()) {
      builder_.map().parameters.clear();
      builder_.map().tied.clear();
    }
    return std::move(builder_.map());
  }

  // Checks the files of the ranks that are here.
  ShareCheck check(bool alone) {
    step_.is_share = true;
    place_swap_folders(step_.found.model_ranks.front());
    const bool read = read_model_ranks();
    const bool nothing = builder_.map().parameters.empty() && std::ranges::all_of(ranks_, &ModelRank::has_nothing);
    if (!builder_.is_given_up() && read && nothing) step_.share.add_unclear("nothing could be read of it");
    add_problems(builder_.map(), step_.share);
    if (alone && step_.node_local && !step_.share.missing.empty()) {
      step_.share.add_unclear(step_.share.missing.front().path + " is not here, and another machine may have it");
      step_.share.missing.clear();
    }
    return std::move(step_.share);
  }

 private:
  // False: there is no model_states.pt that can be read. With foreign files what is joined would be wrong.
  bool read_model_ranks() {
    for (const auto& [file, reason] : step_.found.foreign) builder_.give_up(file, reason);
    if (builder_.is_given_up()) return true;
    const unsigned first = step_.is_share ? first_with_model() : 0;
    const bool read = read_rank(first);
    const ModelRank& told = ranks_.front();
    if (!read) check_ends();
    if (!read || builder_.is_given_up() || !expect_model_ranks(told)) return read;
    for (unsigned number = 0; number < step_.found.model_ranks.size() && !builder_.is_given_up(); ++number) {
      if (number == first) continue;
      if (!read_rank(number)) {
        ranks_.back().lacks_all(told);
      } else if (!ranks_.back().is_like(told)) {
        builder_.give_up(std::nullopt, "its model parallel ranks are not of one save");
      }
    }
    if (told.is_pipeline() && !builder_.is_given_up()) layers_.read_tied();
    return true;
  }

  unsigned first_with_model() const {
    const auto has_model = [](const ModelRankFiles& one) {
      return one.common_model || std::ranges::any_of(one.ranks, [](const RankFiles& rank) { return !!rank.model; });
    };
    const auto first = std::ranges::find_if(step_.found.model_ranks, has_model);
    return first == step_.found.model_ranks.end() ? 0 : static_cast<unsigned>(first - step_.found.model_ranks.begin());
  }

  bool read_rank(unsigned number) {
    begins_.push_back(builder_.map().parameters.size());
    ModelRank& rank = ranks_.emplace_back(step_, layers_, number);
    const bool read = rank.read();
    if (read && !step_.is_share) rank.compose();
    return read;
  }

  // False: it was given up.
  bool expect_model_ranks(const ModelRank& told) {
    const uint64_t most = kMostRanks / std::max<size_t>(told.ranks(), 1);
    const auto world = static_cast<uint64_t>(told.model_world());
    if (told.model_world() <= 0 || world > kMostModelRanks || world > most) {
      builder_.give_up(std::nullopt, "it is of " + std::to_string(told.model_world()) + " model parallel ranks");
    } else if (step_.found.model_ranks.size() > world) {
      builder_.give_up(std::nullopt,
                       "files of more than its " + std::to_string(world) + " model parallel ranks lie here");
    } else if (world > 1 && told.has_swapped()) {
      builder_.give_up(std::nullopt, "swap files of model parallel ranks are not read");
    } else {
      step_.found.model_ranks.resize(world);
    }
    return !builder_.is_given_up();
  }

  void join() {
    if (ranks_.front().is_pipeline()) return join_stages(builder_);
    const TensorCuts& cuts = ranks_.front().cuts();
    cuts.unread.empty() ? join_ranks(cuts, begins_, builder_) : keep_apart(cuts, begins_, builder_);
  }

  // Checks that files were written to their ends which nothing here tells of.
  void check_ends() {
    if (!step_.is_share) return;
    const auto check = [this](uint32_t file) { builder_.with_file(file, [](TorchFile&) {}); };
    for (const ModelRankFiles& one : step_.found.model_ranks) {
      for (const RankFiles& rank : one.ranks) {
        if (rank.optimizer) check(*rank.optimizer);
      }
    }
    for (const auto& [expert, file] : step_.found.experts) check(file);
    for (const auto& [layer, file] : step_.found.layers) check(file);
  }

  // Lists the swap files by themselves: a step that only `save` made has nothing that names their parameters.
  void leave_undivided() {
    const std::vector<RankFiles>& ranks = step_.found.model_ranks.front().ranks;
    for (unsigned number = 0; number < ranks.size(); ++number) {
      for (const auto& [name, index] : ranks[number].swapped) {
        const auto group = parse_group_name(name);
        builder_.map().undivided.push_back({group->first, group->last, number, group->state, index});
      }
    }
  }

  DeepSpeedStep step_;
  MapBuilder& builder_ = step_.builder;
  PipelineLayers layers_{step_};
  std::deque<ModelRank> ranks_;
  std::vector<size_t> begins_;  // of each rank's parameters in the map
};

}  // namespace

bool is_deepspeed_file(std::string_view path) {
  return parse_states_name(path) || parse_layer_name(path) || parse_expert_name(path) ||
         path.starts_with("offloaded_tensors/");
}

bool is_deepspeed(const StepFiles& files, const std::string& folder) {
  return std::any_of(files.list().begin(), files.list().end(), [&](const StepFiles::File& file) {
    return file.path.starts_with(folder) && is_deepspeed_file(std::string_view(file.path).substr(folder.size()));
  });
}

TensorMap read_deepspeed(const StepFiles& files, const std::string& folder, const MapOptions& options) {
  return Reader(files, folder, options).read();
}

ShareCheck check_deepspeed(const StepFiles& files, const std::string& folder, bool alone) {
  return Reader(files, folder, {}).check(alone);
}

}  // namespace ckptfs::meta::formats
