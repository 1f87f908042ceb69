#include "io/json.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

namespace ckptfs::io {
namespace {

// Returns the next bytes, or an empty view at the end.
using NextBytes = std::function<Result<std::string_view>()>;

// Hands the bytes to the parser, and ends the input when a bound is reached. It reduces a run of spaces between values
// to one, because the parser keeps everything that it has read since the last value.
class BoundedBytes {
 public:
  BoundedBytes(NextBytes next, const JsonBounds& bounds) : next_(std::move(next)), bounds_(bounds) {}

  // Returns nothing at the end, or after an error; then error() says why.
  std::optional<char> take() {
    if (!given_.empty()) return take_given();
    for (;;) {
      const auto byte = read();
      if (!byte) return std::nullopt;
      if (quoted_) return in_text(*byte);
      const bool space = *byte == ' ' || *byte == '\n' || *byte == '\r' || *byte == '\t';
      if (!space) return between_texts(*byte);
      length_ = 0;
      if (std::exchange(after_space_, true)) continue;
      return ' ';
    }
  }

  const Error& error() const { return error_; }
  uint64_t position() const { return position_; }

 private:
  std::optional<char> take_given() {
    const char byte = given_.front();
    given_.remove_prefix(1);
    return byte;
  }

  bool fill() {
    if (!buffer_.empty()) return true;
    if (error_.errno_value() != 0) return false;
    auto bytes = next_();
    if (!bytes) error_ = bytes.error();
    if (bytes) buffer_ = bytes.value();
    return !buffer_.empty();
  }
  std::optional<char> peek() { return fill() ? std::optional(buffer_.front()) : std::nullopt; }
  std::optional<char> read() {
    if (!fill()) return std::nullopt;
    const char byte = buffer_.front();
    buffer_.remove_prefix(1);
    ++position_;
    return byte;
  }

  std::optional<char> too_much(const std::string& what) {
    error_ = Error(EFBIG, "byte " + std::to_string(position_) + " of its JSON: " + what);
    buffer_ = {};
    return std::nullopt;
  }
  std::optional<char> counted(char byte) {
    if (++length_ <= bounds_.text) return byte;
    return too_much("a text or number of more than " + std::to_string(bounds_.text) + " bytes");
  }

  std::optional<char> in_text(char byte) {
    if (byte == '"' && !escaped_) quoted_ = false;
    escaped_ = byte == '\\' && !escaped_;
    return counted(byte);
  }

  std::optional<char> between_texts(char byte) {
    after_space_ = false;
    switch (byte) {
      case '"':
        quoted_ = true;
        escaped_ = false;
        length_ = 0;
        return byte;
      case '[':
      case '{':
        if (++depth_ > bounds_.depth) {
          return too_much("lists and objects lie more than " + std::to_string(bounds_.depth) + " deep in each other");
        }
        return another(byte);
      case ',':
      case ':':
        return another(byte);
      case ']':
      case '}':
        depth_ -= depth_ > 0 ? 1 : 0;
        length_ = 0;
        return byte;
      default:
        return bounds_.python ? of_python(byte) : counted(byte);
    }
  }

  std::optional<char> another(char byte) {
    length_ = 0;
    if (++values_ <= bounds_.values) return byte;
    return too_much("more than " + std::to_string(bounds_.values) + " values");
  }

  // Replaces NaN, Infinity and -Infinity by null. Everything else is handed on unchanged.
  std::optional<char> of_python(char byte) {
    const bool nan = byte == 'N', infinity = byte == 'I' || (byte == '-' && peek() == 'I');
    if (!nan && !infinity) return counted(byte);
    constexpr std::string_view kNan = "NaN", kInfinity = "Infinity", kNull = "null";
    const std::string_view name = nan ? kNan : kInfinity;
    for (size_t at = byte == '-' ? 0 : 1; at < name.size(); ++at) {
      if (peek() != name[at]) return '?';  // the parser reports the place
      read();
    }
    given_ = kNull.substr(1);
    return kNull.front();
  }

  const NextBytes next_;
  const JsonBounds& bounds_;
  std::string_view buffer_;  // read, not yet handed on
  std::string_view given_;   // handed to the parser before the next bytes
  uint64_t position_ = 0;
  uint64_t values_ = 0;
  uint64_t length_ = 0;  // of the current text or number
  unsigned depth_ = 0;
  bool quoted_ = false;
  bool escaped_ = false;
  bool after_space_ = false;
  Error error_;
};

// The iterator that the parser takes its input from.
class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  ByteIterator() = default;
  explicit ByteIterator(BoundedBytes& bytes) : bytes_(&bytes), byte_(bytes.take()) {}

  const char& operator*() const { return *byte_; }
  ByteIterator& operator++() {
    byte_ = bytes_->take();
    return *this;
  }
  ByteIterator operator++(int) {
    const ByteIterator before = *this;
    ++*this;
    return before;
  }
  // Iterators are compared with the end only.
  bool operator==(const ByteIterator& other) const { return byte_.has_value() == other.byte_.has_value(); }

 private:
  BoundedBytes* bytes_ = nullptr;
  std::optional<char> byte_;
};

Error no_json(const BoundedBytes& bytes) {
  if (bytes.error().errno_value() != 0) return bytes.error();
  return Error(EBADMSG, "byte " + std::to_string(bytes.position()) + " of its JSON is wrong, or it is cut short");
}

Result<> check_size(uint64_t size, const JsonBounds& bounds) {
  if (size <= bounds.bytes) return success();
  return Error(EFBIG, "it has " + std::to_string(size) + " bytes of JSON: at most " + std::to_string(bounds.bytes) +
                          " are read");
}

NextBytes bytes_of(std::string_view text) {
  return [text]() mutable -> Result<std::string_view> { return std::exchange(text, {}); };
}

Result<> visit(NextBytes next, const JsonBounds& bounds, JsonVisitor& visitor) {
  BoundedBytes bytes(std::move(next), bounds);
  const bool whole = nlohmann::json::sax_parse(ByteIterator(bytes), ByteIterator(), &visitor);
  if (whole && bytes.error().errno_value() == 0) return success();
  return visitor.why().errno_value() != 0 ? visitor.why() : no_json(bytes);
}

}  // namespace

Result<> read_json(std::string_view text, const JsonBounds& bounds, JsonVisitor& visitor) {
  TRY(check_size(text.size(), bounds));
  return visit(bytes_of(text), bounds, visitor);
}

Result<> read_json(const LimitedFile& file, uint64_t offset, uint64_t size, const JsonBounds& bounds,
                   JsonVisitor& visitor) {
  constexpr uint64_t kAtOnce = uint64_t{64} << 10;
  TRY(check_size(size, bounds));
  std::vector<char> buffer(std::min(size, kAtOnce));
  uint64_t at = 0;
  const auto next = [&]() -> Result<std::string_view> {
    const std::span<char> part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), size - at));
    TRY_ASSIGN(const size_t got, file.read_full(std::as_writable_bytes(part), offset + at));
    at += got;
    return std::string_view(buffer.data(), got);
  };
  return visit(next, bounds, visitor);
}

Result<nlohmann::json> parse_json(std::string_view text, const JsonBounds& bounds) {
  TRY(check_size(text.size(), bounds));
  BoundedBytes bytes(bytes_of(text), bounds);
  auto tree = nlohmann::json::parse(ByteIterator(bytes), ByteIterator(), nullptr, false);
  if (tree.is_discarded() || bytes.error().errno_value() != 0) return no_json(bytes);
  return tree;
}

}  // namespace ckptfs::io
