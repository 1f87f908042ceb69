// The content of a file of a view: texts, and tensors as they lie in the step's files or cast to another type, one
// after the other. Its bytes are not kept: each read makes those that it is asked for.
//
// Thread safety: constant once built; read() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fs/views/cast.h"
#include "io/result.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::fs::views {

using meta::formats::Piece;
using meta::formats::Tensor;

// Reads bytes of a file of the step, which is named by its index in StepFiles::list(). Reads fewer only at the end of
// the file.
using ReadPiece = std::function<Result<size_t>(uint32_t file, std::span<std::byte> buffer, uint64_t offset)>;

class Content {
 public:
  void add(std::string text);
  void add(std::shared_ptr<const std::string> text);  // which the view keeps
  // If `to` is not the tensor's own type, both must be castable.
  void add(const Tensor& tensor, Dtype to);
  void add(const Tensor& tensor) { add(tensor, tensor.dtype); }
  // A whole file, or a part of one.
  void add(const Piece& piece) { add(piece, Dtype::uint8, Dtype::uint8); }

  uint64_t size() const { return size_; }
  // About how many bytes of memory the content takes, without the texts that the view keeps.
  size_t memory() const { return parts_.size() * sizeof(Part) + own_texts_; }
  // The files of the step that the content is made from.
  std::set<uint32_t> files() const;
  // Bytes [begin, begin + size) of the content, as they lie in a file of the step from `offset` on.
  struct Run {
    uint64_t begin = 0;
    uint64_t size = 0;
    uint32_t file = 0;
    uint64_t offset = 0;
  };
  // All runs, in order, each as long as it can be. Bytes in no run are text, or are cast.
  std::vector<Run> runs() const;
  // What of the step's files read() needs for these bytes, likewise in order: `begin` is in the content, `size` in the
  // file.
  std::vector<Run> sources(uint64_t offset, uint64_t size) const;
  // The number of parts that read() would make these bytes from.
  size_t parts_of(uint64_t offset, size_t size) const;
  // Fills the buffer, or as much of it as the content has from `offset` on. EIO: a file of the step is shorter than it
  // was. The error does not name the file; the caller adds the name.
  Result<size_t> read(std::span<std::byte> buffer, uint64_t offset, const ReadPiece& read_piece) const;

 private:
  // Bytes [begin, begin + size) of the content.
  struct Part {
    uint64_t begin = 0;
    uint64_t size = 0;
    Piece piece;
    std::shared_ptr<const std::string> text;  // none: the piece
    Dtype from = Dtype::uint8;
    Dtype to = Dtype::uint8;
  };

  void add(const Piece& piece, Dtype from, Dtype to);
  static Result<> fill(const Part& part, std::span<std::byte> target, uint64_t at, const ReadPiece& read_piece);

  std::vector<Part>::const_iterator first_behind(uint64_t offset) const;

  std::vector<Part> parts_;
  uint64_t size_ = 0;
  size_t own_texts_ = 0;  // bytes
};

}  // namespace ckptfs::fs::views
