// Bounded reading of JSON that others wrote. Depth, number of values and length of texts are checked while the bytes
// are read, before any value is built. All JSON from files and sockets must be read through this.
//
// Thread safety: the functions have no state.
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
  uint64_t bytes = uint64_t{1} << 20;   // of the whole input
  uint64_t values = uint64_t{1} << 12;  // that a tree would hold, including keys
  uint64_t text = uint64_t{1} << 16;    // of one string, key or number, in bytes
  unsigned depth = 32;                  // of nested lists and objects
  bool python = false;                  // accept NaN, Infinity and -Infinity, which Python writes, as null
};

inline constexpr uint64_t kAnyNumber = UINT64_MAX;  // for `values`, where the visitor keeps none

// Receives the values as they are read, and keeps what it needs; a tree would take some 100 bytes for each value. A
// function that is not overridden ignores its value. A function that returns false ends the reading with the error that
// it gave to fails().
class JsonVisitor : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return enter(true); }
  bool key(string_t& key) override {
    key_ = key;
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(size_t) override { return enter(false); }
  bool end_array() override { return leave(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  const Error& why() const { return why_; }

 protected:
  // Of an object, or else an array. Both are called with the depth of what is in it, begin() with its key, too.
  virtual bool begin(bool /*object*/) { return true; }
  virtual bool end() { return true; }
  bool fails(Error why) {
    why_ = std::move(why);
    return false;
  }

  unsigned depth_ = 0;  // of the objects and arrays that have begun and not ended
  std::string key_;     // of the value that is read; empty in an array

 private:
  bool enter(bool object) {
    ++depth_;
    const bool go_on = begin(object);
    key_.clear();
    return go_on;
  }
  bool leave() {
    const bool go_on = end();
    --depth_;
    key_.clear();
    return go_on;
  }

  Error why_;
};

// Fails with EBADMSG, in words, if the text is not JSON or is cut short; with EFBIG, in words, if it exceeds the
// bounds; else with the visitor's own error.
Result<> read_json(std::string_view text, const JsonBounds& bounds, JsonVisitor& visitor);
// Reads `size` bytes of a file from `offset` on. Only a piece of them is in memory at a time.
Result<> read_json(const LimitedFile& file, uint64_t offset, uint64_t size, const JsonBounds& bounds,
                   JsonVisitor& visitor);

// Reads the text into a tree.
Result<nlohmann::json> parse_json(std::string_view text, const JsonBounds& bounds);

}  // namespace ckptfs::io
