#include "fs/views/content.h"

#include <algorithm>
#include <cstring>

#include "io/aligned_buffer.h"

namespace ckptfs::fs::views {
namespace {

constexpr size_t kCastAtOnce = size_t{256} << 10;  // bytes of the source, so that they stay in the processor's cache
thread_local io::AlignedBuffer cast_from;

Result<> read_all(const ReadPiece& read_piece, const Piece& piece, std::span<std::byte> buffer, uint64_t at) {
  TRY_ASSIGN(const size_t got, read_piece(piece.file, buffer, piece.offset + at));
  if (got < buffer.size()) return Error(EIO, "a file of the step is shorter than it was");
  return success();
}

// Makes bytes [at, at + target.size()) of the piece after its cast. They may begin and end within elements.
Result<> read_cast(const ReadPiece& read_piece, const Piece& piece, Dtype from, Dtype to, std::span<std::byte> target,
                   uint64_t at) {
  const size_t wide = size_of(from), narrow = size_of(to);
  const auto buffer = cast_from.get(2 * kCastAtOnce);
  if (buffer.size() < 2 * kCastAtOnce) return Error(ENOMEM);
  const size_t at_once = kCastAtOnce / std::max(wide, narrow);
  while (!target.empty()) {
    const uint64_t element = at / narrow;
    const size_t skipped = at % narrow;
    const size_t elements = std::min(at_once, (skipped + target.size() + narrow - 1) / narrow);
    const auto source = buffer.first(elements * wide);
    TRY(read_all(read_piece, piece, source, element * wide));
    const size_t length = std::min(target.size(), elements * narrow - skipped);
    if (skipped == 0 && length == elements * narrow) {
      cast(source, from, target.first(length), to);
    } else {
      const auto whole = buffer.subspan(kCastAtOnce, elements * narrow);
      cast(source, from, whole, to);
      std::memcpy(target.data(), whole.data() + skipped, length);
    }
    target = target.subspan(length);
    at += length;
  }
  return success();
}

}  // namespace

void Content::add(std::string text) {
  own_texts_ += text.size();
  add(std::make_shared<const std::string>(std::move(text)));
}

void Content::add(std::shared_ptr<const std::string> text) {
  if (text->empty()) return;
  Part part{.begin = size_, .size = text->size(), .piece = {}, .text = std::move(text)};
  size_ += part.size;
  parts_.push_back(std::move(part));
}

void Content::add(const Tensor& tensor, Dtype to) {
  for (const Piece& piece : tensor.pieces) add(piece, tensor.dtype, to);
}

void Content::add(const Piece& piece, Dtype from, Dtype to) {
  const uint64_t size = piece.size / size_of(from) * size_of(to);
  if (size == 0) return;
  parts_.push_back({size_, size, piece, nullptr, from, to});
  size_ += size;
}

std::set<uint32_t> Content::files() const {
  std::set<uint32_t> files;
  for (const Part& part : parts_) {
    if (!part.text) files.insert(part.piece.file);
  }
  return files;
}

std::vector<Content::Run> Content::runs() const {
  std::vector<Run> runs;
  for (const Part& part : parts_) {
    if (part.text || part.from != part.to) continue;
    const Run run{part.begin, part.size, part.piece.file, part.piece.offset};
    Run* const last = runs.empty() ? nullptr : &runs.back();
    const bool goes_on = last != nullptr && last->file == run.file && last->begin + last->size == run.begin &&
                         last->offset + last->size == run.offset;
    if (goes_on) {
      last->size += run.size;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

std::vector<Content::Run> Content::sources(uint64_t offset, uint64_t size) const {
  std::vector<Run> found;
  if (offset >= size_ || size == 0) return found;
  const uint64_t end = std::min(size_, offset + size);
  auto part = first_behind(offset);
  for (--part; part != parts_.end() && part->begin < end; ++part) {
    if (part->text) continue;
    const uint64_t wide = size_of(part->from), narrow = size_of(part->to);
    const uint64_t from = std::max(offset, part->begin) - part->begin;
    const uint64_t to = std::min(end, part->begin + part->size) - part->begin;
    const uint64_t first = from / narrow * wide, last = (to + narrow - 1) / narrow * wide;
    const Run run{part->begin + from, last - first, part->piece.file, part->piece.offset + first};
    if (!found.empty() && found.back().file == run.file && found.back().offset + found.back().size == run.offset) {
      found.back().size += run.size;
    } else {
      found.push_back(run);
    }
  }
  return found;
}

Result<> Content::fill(const Part& part, std::span<std::byte> target, uint64_t at, const ReadPiece& read_piece) {
  if (part.text) {
    std::memcpy(target.data(), part.text->data() + at, target.size());
    return success();
  }
  if (part.from == part.to) return read_all(read_piece, part.piece, target, at);
  return read_cast(read_piece, part.piece, part.from, part.to, target, at);
}

// The first part that begins behind `offset`.
std::vector<Content::Part>::const_iterator Content::first_behind(uint64_t offset) const {
  return std::upper_bound(parts_.begin(), parts_.end(), offset,
                          [](uint64_t at, const Part& part) { return at < part.begin; });
}

size_t Content::parts_of(uint64_t offset, size_t size) const {
  if (offset >= size_ || size == 0) return 0;
  return static_cast<size_t>(first_behind(offset + size - 1) - first_behind(offset)) + 1;
}

Result<size_t> Content::read(std::span<std::byte> buffer, uint64_t offset, const ReadPiece& read_piece) const {
  if (offset >= size_) return size_t{0};
  buffer = buffer.first(std::min<uint64_t>(buffer.size(), size_ - offset));
  auto part = first_behind(offset);
  size_t filled = 0;
  for (--part; filled < buffer.size(); ++part) {
    const uint64_t at = offset + filled - part->begin;
    const size_t length = std::min<uint64_t>(buffer.size() - filled, part->size - at);
    TRY(fill(*part, buffer.subspan(filled, length), at, read_piece));
    filled += length;
  }
  return filled;
}

}  // namespace ckptfs::fs::views
