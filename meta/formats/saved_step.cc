#include "meta/formats/saved_step.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/json.h"
#include "meta/formats/assembly.h"
#include "meta/formats/box.h"
#include "meta/formats/manifest.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/state_dict.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

constexpr std::string_view kEnding = ".safetensors";
constexpr uint64_t kOfNames = 96;  // bytes that a name takes in a container, beside its own
constexpr size_t kLongestWhole = 4096;
constexpr io::JsonBounds kPieceBounds{.bytes = 1 << 16, .text = 1 << 14, .depth = 4};

std::optional<Shape> shape_in(const nlohmann::json& piece, const char* key) {
  const auto list = piece.find(key);
  const bool fits = list != piece.end() && list->is_array() && list->size() <= kMostDimensions &&
                    std::ranges::all_of(*list, [](const auto& length) { return length.is_number_unsigned(); });
  return fits ? std::optional(list->get<Shape>()) : std::nullopt;
}

// A tensor of which the ranks' files hold pieces.
struct Whole {
  std::string name;
  Dtype dtype = Dtype::float32;
  Shape shape;
  std::vector<PlacedBox> boxes;
  std::string wrong;  // why it cannot be put together
};

class SavedStepReader {
 public:
  SavedStepReader(const StepFiles& files, const MapOptions& options) : files_(files), budget_(options) {}

  TensorMap read() {
    const auto world_size = world_size_of(files_);
    std::vector<uint32_t> ranks;
    for (uint32_t index = 0; index < files_.list().size(); ++index) {
      const auto rank = rank_of_file(files_.list()[index].path);
      if (rank && (!world_size || *rank < *world_size)) ranks.push_back(index);  // others are of an earlier save
    }
    for (const uint32_t index : ranks) {
      if (!add_file(index, ranks.size() > 1)) return std::move(map_);
    }
    for (Whole& whole : wholes_) {
      if (!add_whole(std::move(whole))) break;
    }
    if (budget_.options().sorts_saved) sort();
    return std::move(map_);
  }

 private:
  // Tells the model from the optimizer, or says why that cannot be.
  void sort() {
    const std::vector<std::string> names(names_.begin(), names_.end());
    if (are_nested(names)) {
      std::vector<SavedTensor> saved;
      for (Parameter& one : map_.parameters)
        saved.push_back({{}, {}, keys_of_nested(one.name), std::move(one.states.at(kParam))});
      TensorMap sorted = by_parameter(std::move(saved), false);
      map_.parameters = std::move(sorted.parameters);
      for (Problem& problem : sorted.problems) add_problem(map_, std::move(problem));
    } else if (const auto state = std::ranges::find_if(names, is_named_as_state); state != names.end()) {
      add_problem(map_, {"", *state + " is of an optimizer: nothing tells which tensors are the model's",
                         Problem::Kind::left_out});
    }
    if (of_each_rank_)
      add_problem(
          map_, {"", "each rank has tensors of its own: nothing tells which are the model's", Problem::Kind::left_out});
  }

  // Returns false if there is no more room. Then the pieces of other files are not known, so no whole is put together.
  bool add_file(uint32_t index, bool several) {
    const std::string& path = files_.list()[index].path;
    const auto file = files_.open(index);
    auto header = file ? read_safetensors_header(files_.limited(file.value()), kPieceKey) : file.error();
    if (!header) {
      add_problem(map_, {path, header.error().message()});
      return true;
    }
    for (SafeTensor& tensor : header.value().tensors) {
      const auto entry = header.value().metadata.find(std::string(kPieceKey) + tensor.name);
      const bool piece = entry != header.value().metadata.end();
      const bool room = piece ? add_piece(index, std::move(tensor), entry->second)
                              : add_plain(index, std::move(tensor),
                                          several ? path.substr(0, path.size() - kEnding.size()) + "/" : "");
      if (!room) {
        add_problem(map_, {path, kTooManyTensors});
        return false;
      }
    }
    return true;
  }

  bool add_plain(uint32_t index, SafeTensor tensor, const std::string& prefix) {
    of_each_rank_ = of_each_rank_ || !prefix.empty();
    return add(prefix + tensor.name,
               {tensor.dtype, std::move(tensor.shape), {{index, tensor.offset, tensor.size}}, {}});
  }

  bool add_piece(uint32_t index, SafeTensor tensor, const std::string& text) {
    auto piece = parse_piece(text);
    if (!piece) {
      add_problem(map_,
                  {files_.list()[index].path, tensor.name + ": what it is a piece of: " + piece.error().message()});
      return true;
    }
    SavedPiece& of = piece.value();
    const auto [known, fresh] = numbers_.emplace(of.of, wholes_.size());
    if (fresh) {
      if (!budget_.take(sizeof(Whole) + kOfNames + 2 * of.of.size())) return false;
      wholes_.push_back({of.of, tensor.dtype, of.shape, {}, elements_of(of.shape) ? "" : "no tensor has its shape"});
    }
    Whole& whole = wholes_[known->second];
    PlacedBox placed{{std::move(of.offsets), std::move(tensor.shape)}, {index, tensor.offset, tensor.size}};
    if (!budget_.take(placed)) return false;
    if (!whole.wrong.empty()) return true;
    if (of.shape != whole.shape || tensor.dtype != whole.dtype) {
      whole.wrong = "its pieces disagree on its shape or type: " + files_.list()[index].path + ", " + tensor.name;
    } else if (!lies_within(placed.box, whole.shape)) {
      whole.wrong = "a piece lies outside it: " + files_.list()[index].path + ", " + tensor.name;
    } else if (tensor.size != 0) {
      whole.boxes.push_back(std::move(placed));
    }
    return true;
  }

  bool add_whole(Whole whole) {
    auto tensor = whole.wrong.empty() ? assembled(whole.dtype, whole.shape, std::move(whole.boxes), budget_)
                                      : Error(EBADMSG, whole.wrong);
    if (!tensor) {
      add_problem(map_, {"", whole.name + ": " + tensor.error().message()});
      return true;
    }
    if (add(whole.name, std::move(tensor).value())) return true;
    add_problem(map_, {"", kTooManyTensors});
    return false;
  }

  bool add(const std::string& name, Tensor tensor) {
    if (!budget_.take(kOfNames + name.size())) return false;
    if (!names_.insert(name).second) {
      add_problem(map_, {"", name + " is there twice"});
      return true;
    }
    return budget_.add(map_, name, std::move(tensor));
  }

  const StepFiles& files_;
  MapBudget budget_;
  TensorMap map_;
  std::vector<Whole> wholes_;              // in the order in which their first pieces are read
  std::map<std::string, size_t> numbers_;  // in wholes_, by name
  std::set<std::string> names_;            // of what is in the map
  bool of_each_rank_ = false;              // some are tensors of one rank
};

}  // namespace

std::string piece_text(const SavedPiece& piece) {
  const nlohmann::ordered_json whole = {{"of", piece.of}, {"shape", piece.shape}, {"offsets", piece.offsets}};
  return whole.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<SavedPiece> parse_piece(const std::string& text) {
  TRY_ASSIGN(const auto piece, io::parse_json(text, kPieceBounds));
  const auto of = piece.find("of");
  const std::string name = of != piece.end() && of->is_string() ? of->get<std::string>() : std::string();
  const auto shape = shape_in(piece, "shape"), offsets = shape_in(piece, "offsets");
  if (name.empty() || !shape || !offsets || shape->size() != offsets->size())
    return Error(EBADMSG, "it lacks a name, a shape or offsets");
  if (name.size() > kLongestWhole)
    return Error(EFBIG, "the name of a tensor has " + std::to_string(name.size()) + " bytes");
  return SavedPiece{name, *shape, *offsets};
}

std::optional<unsigned> rank_of_file(std::string_view path) {
  if (!path.ends_with(kEnding)) return std::nullopt;
  return rank_of(path.substr(0, path.size() - kEnding.size()));
}

bool is_saved_step(const StepFiles& files) {
  return std::ranges::any_of(files.list(), is_manifest_name, &StepFiles::File::path);
}

TensorMap read_saved_step(const StepFiles& files, const MapOptions& options) {
  return SavedStepReader(files, options).read();
}

}  // namespace ckptfs::meta::formats
