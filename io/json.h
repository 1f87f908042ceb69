// JSON that others wrote, read within bounds: how deep it is, how many values it has, and how long a text in it is are
// checked as its bytes come by, before anything is made of them. Whoever reads JSON of a file or of a socket reads it
// here.
//
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "io/read_limit.h"
#include "io/result.h"

namespace ckptfs::io {

struct JsonBounds {
  uint64_t bytes = uint64_t{1} << 20;   // of all of it
  uint64_t values = uint64_t{1} << 12;  // that a tree would hold; keys count
  uint64_t text = uint64_t{1} << 16;    // bytes of one text, key or number
  unsigned depth = 32;                  // of lists and objects in each other
  bool python = false;                  // NaN, Infinity and -Infinity are there, as Python writes them: null
};

inline constexpr uint64_t kAnyNumber = UINT64_MAX;  // of values: of what keeps none

// Takes values as they are read, and keeps what it needs: a tree takes some 100 bytes a value. What is not overridden
// is passed over. A function that returns false ends the reading, with what it called fails() with.
class JsonVisitor : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  const Error& why() const { return why_; }

 protected:
  bool fails(Error why) {
    why_ = std::move(why);
    return false;
  }

 private:
  Error why_;
};

// EBADMSG, in words: it is no JSON, or cut short. EFBIG, in words: more of it than the bounds. Else the visitor's own.
Result<> read_json(std::string_view text, const JsonBounds& bounds, JsonVisitor& visitor);
// `size` bytes of a file, from `offset` on; a piece of it is in memory at a time.
Result<> read_json(const LimitedFile& file, uint64_t offset, uint64_t size, const JsonBounds& bounds,
                   JsonVisitor& visitor);

// A tree of it.
Result<nlohmann::json> parse_json(std::string_view text, const JsonBounds& bounds);

}  // namespace ckptfs::io
