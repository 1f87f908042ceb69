// A pickle read as plain data: nothing is imported, called or built. What Python would make by calling something stays
// an *object*: the name of what would be called, its arguments, and the state that it would be given. Known by name are
// only collections.OrderedDict and defaultdict (dicts here) and torch.Size (a tuple).
//
// pickle_reader.h makes one from its bytes. Format: Python's Lib/pickletools.py, protocols 2 to 5, as torch.save and
// DCP write them; the text opcodes of protocol 0 and buffers outside the pickle are refused.
//
// Memory is bounded: the pickle itself, of which text is a view, and kMostMemory for at most kMostValues values of some
// 30 bytes. Values may share and, in a hostile pickle, contain themselves: whoever walks them bounds the depth.
//
// Thread safety: constant once read.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckptfs::meta::formats {

class Pickle {
 public:
  static constexpr size_t kMostBytes = size_t{32} << 20;
  static constexpr size_t kMostValues = size_t{2} << 20;
  static constexpr size_t kMostMemory = size_t{64} << 20;  // bytes

  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    big_integer,  // of more than 64 bits: its bytes
    real,
    text,
    bytes,
    list,
    tuple,
    dict,
    set,
    global,      // a name that Python would import
    object,      // what a call would return
    persistent,  // what the file that holds the pickle knows by an id: torch's storages
  };

  // One value; as cheap as a pointer, and valid as long as its pickle.
  class Value {
   public:
    Kind kind() const;
    bool is_none() const { return kind() == Kind::none; }
    // What it is not is none.
    std::optional<bool> boolean() const;
    std::optional<int64_t> integer() const;
    std::optional<double> real() const;
    std::optional<std::string_view> text() const;

    // Of a list, tuple or set; else none are there.
    size_t size() const;
    Value operator[](size_t index) const;
    // Of a dict, or of an object that was given items; in the order of the file.
    size_t pairs() const;
    std::pair<Value, Value> pair(size_t index) const;
    // The value of a text key; the last, where it is there several times.
    std::optional<Value> find(std::string_view key) const;

    // Of a global, or of the one that an object was made by: "torch._utils._rebuild_tensor_v2".
    std::string name() const;
    // Of an object: a tuple.
    std::optional<Value> arguments() const;
    // What an object or a dict was given as its state (BUILD): mostly its attributes.
    std::optional<Value> state() const;
    // The id of a persistent value.
    std::optional<Value> id() const;

    // Tells values apart in a walk.
    uint32_t index() const { return index_; }

   private:
    friend class Pickle;
    friend class PickleReader;
    Value(const Pickle* pickle, uint32_t index) : pickle_(pickle), index_(index) {}
    std::span<const uint32_t> items() const;

    const Pickle* pickle_;
    uint32_t index_;
  };

  Pickle(Pickle&&) = default;
  Pickle& operator=(Pickle&&) = default;

  Value root() const { return {this, root_}; }

 private:
  friend class PickleReader;
  struct Node {
    Kind kind = Kind::none;
    uint32_t where = 0;    // an offset of bytes_, or an index of growing_, tuples_, objects_, globals_ or nodes_
    uint64_t payload = 0;  // the number itself, or how many
  };
  // The items of a list, a dict (key, value, key, ...) or a set, and a state.
  struct Growing {
    std::vector<uint32_t> items;
    std::optional<uint32_t> state;
  };
  struct Object {
    uint32_t callable = 0;
    uint32_t arguments = 0;
    Growing given;
  };
  struct Global {
    std::string_view module;
    std::string_view name;
  };

  Pickle() = default;
  const Growing* growing(const Node& node) const;

  std::unique_ptr<const std::string> bytes_;  // texts are views of it
  std::deque<Node> nodes_;
  std::vector<uint32_t> tuples_;  // items of all tuples, one after the other
  std::deque<Growing> growing_;
  std::deque<Object> objects_;
  std::vector<Global> globals_;
  uint32_t root_ = 0;
};

}  // namespace ckptfs::meta::formats
