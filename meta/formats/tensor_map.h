// Which tensors a step holds, and which bytes of which of its files each is: what the readers of formats find, and what
// views are made from. Plain data; shapes are in elements, outermost first, sizes and offsets in bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/fd.h"
#include "io/read_limit.h"
#include "io/result.h"
#include "meta/formats/dtype.h"

namespace ckptfs::meta::formats {

// A step's files, as its readers see them. Thread safety: one thread at a time.
class StepFiles {
 public:
  struct File {
    std::string path;  // below the step
    uint64_t size = 0;
  };
  StepFiles() = default;
  StepFiles(const StepFiles&) = delete;
  StepFiles& operator=(const StepFiles&) = delete;
  virtual ~StepFiles() = default;

  virtual const std::vector<File>& list() const = 0;
  // For reading; `index`: in list().
  virtual Result<io::Fd> open(uint32_t index) const = 0;
  // What is open()ed, to be read: it counts for the limit of the step.
  io::LimitedFile limited(const io::Fd& file) const { return {file.get(), &limit_}; }
  // All of a file; EFBIG: it has more than `most` bytes.
  Result<std::string> read(uint32_t index, uint64_t most) const;
  // The limit was reached: what was read of the step is not all of it.
  const std::optional<Error>& refused() const { return limit_.reached(); }

 protected:
  explicit StepFiles(const io::ReadLimit& limit) : limit_(limit) {}

 private:
  mutable io::ReadLimit limit_;
};

using Shape = std::vector<uint64_t>;
inline constexpr size_t kMostDimensions = 64;  // as torch has it

// Bytes of one file.
struct Piece {
  uint32_t file = 0;  // its index in StepFiles::list()
  uint64_t offset = 0;
  uint64_t size = 0;
};

// A whole tensor: the pieces in that order are its elements, row by row.
struct Tensor {
  Dtype dtype = Dtype::float32;
  Shape shape;
  std::vector<Piece> pieces;
};

// The state that a parameter is in the model itself, as it computes with it.
inline constexpr const char* kParam = "param";

// A parameter or a buffer of the model, with what the optimizer keeps of it; or a tensor that belongs to neither.
struct Parameter {
  enum class Kind { trained, frozen, buffer, other };
  std::string name;
  Kind kind = Kind::trained;
  std::optional<uint64_t> ds_id;         // DeepSpeed's number for it, where files make it certain
  std::map<std::string, Tensor> states;  // "fp32", "exp_avg", ...; kParam
};

// A parameter that has a second name.
struct Tied {
  std::string name;
  std::string same_as;
};

// A swap file of which nothing tells what parameters it holds; with its padding.
struct SwapFile {
  uint64_t first = 0;  // ds_ids of the first and last parameter of its group
  uint64_t last = 0;
  unsigned rank = 0;
  std::string state;
  uint32_t file = 0;
};

// So many are told of one step: a damaged one could have millions.
inline constexpr size_t kMostProblems = 1000;

// What could not be read, and the rest of the step shows without.
struct Problem {
  // unreadable: it may be as it should be, and nobody can tell. missing: it is not there, or ends too early, as what
  // was not written to its end. left_out: whoever wrote the checkpoint left it out, and is content.
  enum class Kind { unreadable, missing, left_out };
  std::string file;  // below the step; empty: the step as a whole
  std::string reason;
  Kind kind = Kind::unreadable;
};

struct TensorMap {
  std::vector<Parameter> parameters;  // in the order of the checkpoint
  std::optional<Dtype> computes_in;   // what the model computed in, where the checkpoint says so
  std::vector<Tied> tied;
  std::vector<SwapFile> undivided;
  std::vector<Problem> problems;
  std::string names_from;  // the step of the same run that told the names, where it was another one (same_run.h)
};

// Of more than kMostProblems the first are kept, and of each reason what a person would read.
void add_problem(TensorMap& map, Problem problem);

// None: more than fits into 60 bits.
std::optional<uint64_t> elements_of(const Shape& shape);

}  // namespace ckptfs::meta::formats
