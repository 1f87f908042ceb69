// Describes which tensors a step has, and which bytes of which files hold each of them. The readers of formats produce
// it, and views are made from it. Plain data. Shapes are in elements, outermost dimension first; sizes and offsets are
// in bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/fd.h"
#include "io/read_limit.h"
#include "io/result.h"
#include "meta/formats/completeness_judgement.h"
#include "meta/formats/dtype.h"

namespace ckptfs::meta::formats {

// The interface to a step's files for the readers. Thread safety: one thread at a time.
class StepFiles {
 public:
  struct File {
    std::string path;  // relative to the step
    uint64_t size = 0;
  };
  StepFiles() = default;
  StepFiles(const StepFiles&) = delete;
  StepFiles& operator=(const StepFiles&) = delete;
  virtual ~StepFiles() = default;

  virtual const std::vector<File>& list() const = 0;
  // Opens a file for reading. `index` is an index into list().
  virtual Result<io::ReadableFile> open(uint32_t index) const = 0;
  // Wraps a file from open(), so that what is read counts for the step's limit.
  io::LimitedFile limited(const io::ReadableFile& file) const { return {file, &limit_}; }
  // Reads a whole file. Fails with EFBIG if it has more than `most` bytes.
  Result<std::string> read(uint32_t index, uint64_t most) const;
  // The error if the limit was reached, in which case the step was not read in full.
  const std::optional<Error>& refused() const { return limit_.reached(); }

 protected:
  explicit StepFiles(const io::ReadLimit& limit) : limit_(limit) {}

 private:
  mutable io::ReadLimit limit_;
};

// The index of the file of that path.
std::optional<uint32_t> index_of(const std::vector<StepFiles::File>& files, std::string_view path);

using Shape = std::vector<uint64_t>;
inline constexpr size_t kMostDimensions = 64;  // torch's own limit

// A range of one file.
struct Piece {
  uint32_t file = 0;  // its index in StepFiles::list()
  uint64_t offset = 0;
  uint64_t size = 0;
};

// A rectangular part of a tensor: one offset and one size for each of its dimensions, in elements (box.h).
struct Box {
  Shape offsets;
  Shape sizes;
  bool operator==(const Box&) const = default;
};

// A box whose elements, in row-major order, are the bytes of one piece.
struct PlacedBox {
  Box box;
  Piece piece;
};

// A tensor. The pieces, in this order, hold its elements in row-major order. If there are boxes, there are no pieces:
// the boxes hold each element once. Only who asks for boxes (map_budget.h) gets any.
struct Tensor {
  Dtype dtype = Dtype::float32;
  Shape shape;
  std::vector<Piece> pieces;
  std::vector<PlacedBox> boxes = {};
};

// The name of a parameter's state in the model itself, in the type that the model computes with.
inline constexpr const char* kParam = "param";

// A parameter or a buffer of the model with what the optimizer keeps of it, or a tensor that is neither.
struct Parameter {
  // other: it may be somebody's weights. resume: it is known to be for a resume only, and not of which parameter.
  enum class Kind { trained, frozen, buffer, other, resume };
  std::string name;
  Kind kind = Kind::trained;
  std::optional<uint64_t> ds_id;         // DeepSpeed's number of it, if the files make it certain
  std::map<std::string, Tensor> states;  // "fp32", "exp_avg", ...; kParam
};

// Does FSDP call so what it has made of several parameters? "layers.0._flat_param", "flat_param_0"
inline bool is_flat(std::string_view name) { return name.substr(name.rfind('.') + 1).find("flat_param") != name.npos; }

// A second name of a parameter.
struct Tied {
  std::string name;
  std::string same_as;
};

// A swap file of which nothing tells the parameters. It includes padding.
struct SwapFile {
  uint64_t first = 0;  // ds_id of the first parameter of its group
  uint64_t last = 0;
  unsigned rank = 0;
  std::string state;
  uint32_t file = 0;
};

// A damaged step could have millions of problems; only so many are kept.
inline constexpr size_t kMostProblems = 1000;

// A part of the step that could not be read. The map contains the rest.
struct Problem {
  // unreadable: it may be intact, but that cannot be decided. missing: it is not there, or ends too early because it
  // was not written to its end. left_out: the step has all that was saved, and that is no whole model: the program that
  // wrote it left something out on purpose, or put parameters together whose names it does not tell.
  enum class Kind { unreadable, missing, left_out };
  std::string file;  // relative to the step; empty for the step as a whole
  std::string reason;
  Kind kind = Kind::unreadable;
  bool absent = false;  // missing: only because a file is not there, which another machine may have
};
std::string text_of(const Problem& problem);

struct TensorMap {
  std::vector<Parameter> parameters;  // in the order of the checkpoint
  std::optional<Dtype> computes_in;   // the type that the model computed in, if the checkpoint tells it
  std::vector<Tied> tied;
  std::vector<SwapFile> undivided;
  std::vector<Problem> problems;
  // the step that the names were taken from, if it was another one of the same run (same_run.h)
  std::string names_from;
};

// What the problems say of the step's files. `and_absent`: also of those that are not there.
void add_problems(const TensorMap& map, ShareCheck& share, bool and_absent = true);

// Keeps the first kMostProblems problems, and cuts a reason that is too long to be read.
void add_problem(TensorMap& map, Problem problem);

inline constexpr uint64_t kMostElements = uint64_t{1} << 60;
// Returns nothing if there are more.
std::optional<uint64_t> elements_of(const Shape& shape);

}  // namespace ckptfs::meta::formats
