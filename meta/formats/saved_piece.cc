#include "meta/formats/saved_piece.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/json.h"

namespace ckptfs::meta::formats {
namespace {

constexpr size_t kLongestWhole = 4096;
constexpr io::JsonBounds kPieceBounds{.bytes = 1 << 16, .values = io::kAnyNumber, .text = 1 << 14, .depth = 4};

class PieceReader : public io::JsonVisitor {
 public:
  bool key(string_t& key) override {
    key_ = key;
    return true;
  }
  bool string(string_t& text) override {
    if (list_ == nullptr && key_ == "of") of_ = text;
    return true;
  }
  bool number_integer(number_integer_t) override { return list_ == nullptr || fails(no_number()); }
  bool number_float(number_float_t, const string_t&) override { return list_ == nullptr || fails(no_number()); }
  bool number_unsigned(number_unsigned_t number) override {
    if (list_ == nullptr) return true;
    if (list_->size() == kMostDimensions) return fails(Error(EBADMSG, "it has too many dimensions"));
    list_->push_back(number);
    return true;
  }

  Result<SavedPiece> take() {
    if (!of_ || of_->empty() || !shape_ || !offsets_ || shape_->size() != offsets_->size()) {
      return Error(EBADMSG, "it lacks a name, a shape or offsets");
    }
    if (of_->size() > kLongestWhole)
      return Error(EFBIG, "the name of a tensor has " + std::to_string(of_->size()) + " bytes");
    return SavedPiece{*std::move(of_), *std::move(shape_), *std::move(offsets_)};
  }

 private:
  static Error no_number() { return Error(EBADMSG, "a shape has what is no length"); }
  bool begin(bool object) override {
    if (object) return true;
    if (key_ == "shape") list_ = &shape_.emplace();
    if (key_ == "offsets") list_ = &offsets_.emplace();
    return true;
  }
  bool end() override {
    list_ = nullptr;
    return true;
  }

  std::string key_;
  std::optional<std::string> of_;
  std::optional<Shape> shape_;
  std::optional<Shape> offsets_;
  Shape* list_ = nullptr;  // numbers are added to it
};

}  // namespace

std::string piece_text(const SavedPiece& piece) {
  const nlohmann::ordered_json whole = {{"of", piece.of}, {"shape", piece.shape}, {"offsets", piece.offsets}};
  return whole.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<SavedPiece> parse_piece(const std::string& text) {
  PieceReader reader;
  TRY(io::read_json(text, kPieceBounds, reader));
  return reader.take();
}

}  // namespace ckptfs::meta::formats
