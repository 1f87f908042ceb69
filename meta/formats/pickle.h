// Reads a pickle as plain data: nothing is imported, called or built. Where Python would call something, the result
// here is an *object*: the name of the callable, its arguments, and the state that it would get. Only three names are
// known: collections.OrderedDict and defaultdict become dicts, and torch.Size becomes a tuple.
//
// Format: Python's Lib/pickletools.py, protocols 2 to 5, as torch.save and DCP write them; the text opcodes of protocol
// 0 and buffers outside the pickle are refused.
//
// Memory is bounded: the pickle itself, which texts are views of, and kMostMemory for its values. Values may share
// other values, and in a hostile pickle may contain themselves, so code that walks them must bound the depth.
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

#include "io/result.h"

namespace ckptfs::meta::formats {

class Pickle {
 public:
  static constexpr size_t kMostBytes = size_t{32} << 20;
  static constexpr size_t kMostValues = size_t{16} << 20;  // that are used, each as often as that is
  static constexpr size_t kMostMarks = size_t{1} << 20;    // at once; as many values may wait between them
  static constexpr size_t kMostMemory = size_t{64} << 20;  // bytes

  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    big_integer,  // does not fit 64 bits; kept as bytes
    real,
    text,
    bytes,
    list,
    tuple,
    dict,
    set,
    global,      // a name that Python would import
    object,      // the result of a call
    persistent,  // a reference to something outside the pickle, by id: torch's storages
  };

  // A value. It is as cheap as a pointer, and valid as long as its pickle.
  class Value {
   public:
    Kind kind() const;
    bool is_none() const { return kind() == Kind::none; }
    // Each returns nothing if the value is of another kind.
    std::optional<bool> boolean() const;
    std::optional<int64_t> integer() const;
    std::optional<std::string_view> text() const;

    // The items of a list, tuple or set. size() is 0 for any other kind.
    size_t size() const;
    Value operator[](size_t index) const;
    // The pairs of a dict, or of an object that was given items, in the order of the file.
    size_t pairs() const;
    std::pair<Value, Value> pair(size_t index) const;
    // Returns the value for a text key. If the key occurs several times, the last one counts.
    std::optional<Value> find(std::string_view key) const;

    // The name of a global, or of the global that made an object: "torch._utils._rebuild_tensor_v2".
    std::string name() const;
    // The arguments of an object, as a tuple.
    std::optional<Value> arguments() const;
    // The state that an object, a list, a set or a dict was given (BUILD): mostly its attributes.
    std::optional<Value> state() const;
    // The id of a persistent value.
    std::optional<Value> id() const;

    // Distinguishes values in a walk.
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
    uint32_t where = 0;    // an offset in bytes_, or an index into growing_, tuples_, objects_, globals_ or nodes_
    uint64_t payload = 0;  // the number itself, or a count
  };
  // The items of a list, a set or a dict (key, value, key, ...), and a state.
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
  // The items of a list, a set, a dict or an object. Null: the value can have none. `Any`: constant or not.
  template <class Any>
  static auto* growing(Any& pickle, uint32_t index) {
    const auto& [kind, where, payload] = pickle.nodes_[index];
    const bool grows = kind == Kind::list || kind == Kind::set || kind == Kind::dict;
    return kind == Kind::object ? &pickle.objects_[where].given : grows ? &pickle.growing_[where] : nullptr;
  }

  std::unique_ptr<const std::string> bytes_;  // texts are views of it
  std::deque<Node> nodes_;
  std::vector<uint32_t> tuples_;  // the items of all tuples, end to end
  std::deque<Growing> growing_;
  std::deque<Object> objects_;
  std::vector<Global> globals_;
  uint32_t root_ = 0;
};

// Fails with EBADMSG and the offset if the bytes are no pickle, are cut short, or are beyond the bounds.
Result<Pickle> read_pickle(std::string bytes);

}  // namespace ckptfs::meta::formats
