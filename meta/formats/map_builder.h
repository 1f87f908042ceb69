// The map of a DeepSpeed checkpoint while it is read: its problems, what it may take, and tensors of torch's files.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meta/formats/map_budget.h"
#include "meta/formats/tensor_map.h"
#include "meta/formats/torch_file.h"

namespace ckptfs::meta::formats {

// One rank's part of a group: contiguous elements of one state.
struct Flat {
  Piece piece;
  Dtype dtype = Dtype::float32;
  uint64_t elements() const { return piece.size / size_of(dtype); }
};
using Flats = std::vector<std::optional<Flat>>;  // by rank

struct Member {
  std::string name;
  Shape shape;
  uint64_t elements = 0;
  uint64_t padding = 0;  // elements that follow it, in stages 1 and 2
};

class MapBuilder {
 public:
  MapBuilder(const StepFiles& files, const MapOptions& options) : files_(files), budget_(options) {}

  const StepFiles& files() const { return files_; }
  TensorMap& map() { return map_; }
  MapBudget& budget() { return budget_; }

  // Tells of a problem; `file`: its index in StepFiles::list(), none: of the step as a whole.
  void problem(std::optional<uint32_t> file, const std::string& reason, Problem::Kind kind = Problem::Kind::unreadable);
  void missing(std::optional<uint32_t> file, const std::string& reason) {
    problem(file, reason, Problem::Kind::missing);
  }
  void left_out(std::optional<uint32_t> file, const std::string& reason) {
    problem(file, reason, Problem::Kind::left_out);
  }
  // Was any of that kind told? Not for left_out.
  bool has_told(Problem::Kind kind) const { return told_.at(static_cast<size_t>(kind)); }
  // A layout that is not read: its parts put together as those of another would be wrong.
  void give_up(std::optional<uint32_t> file, const std::string& reason,
               Problem::Kind kind = Problem::Kind::unreadable) {
    give_up();
    problem(file, reason, kind);
  }
  void give_up() { given_up_ = true; }
  bool is_given_up() const { return given_up_; }

  // Whether there is room for that much more.
  template <class Size>
  bool has_room(const Size& size) {
    if (!given_up_ && !budget_.take(size)) give_up(std::nullopt, kTooManyTensors);
    return !given_up_;
  }
  bool has_room_for(const Member& member) { return has_room(sizeof(Member) + 2 * member.name.size()); }
  // False: there is no room for it.
  bool add_whole(std::string_view name, Parameter::Kind kind, Tensor tensor);

  // Calls `with` on a torch file that is open during the call.
  void with_file(uint32_t index, const std::function<void(TorchFile&)>& with);
  // The tensor's bytes; none, with the problem told: it is none, or cannot be read.
  std::optional<Flat> flat_of(uint32_t index, TorchFile& file, const Pickle::Value& value, const std::string& what);
  // A tensor that one file holds all of.
  std::optional<Tensor> whole(uint32_t index, TorchFile& file, const Pickle::Value& value, const std::string& what);

 private:
  const StepFiles& files_;
  TensorMap map_;
  MapBudget budget_;
  bool given_up_ = false;
  std::array<bool, 3> told_{};  // whether there is a problem of each kind
};

}  // namespace ckptfs::meta::formats
