#include "meta/formats/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace ckptfs::meta::formats {

using Kind = Pickle::Kind;

// The machine that pickletools describes: a stack, marks in it, and a memo.
class PickleReader {
 public:
  explicit PickleReader(std::string bytes)
      : bytes_(*(pickle_.bytes_ = std::make_unique<const std::string>(std::move(bytes)))) {}

  Result<Pickle> read() {
    while (!done_) {
      began_ = at_;
      TRY_ASSIGN(const uint8_t opcode, number<uint8_t>());
      TRY(step(opcode));
      if (memory_ > Pickle::kMostMemory) return wrong("its values take more memory than those of any checkpoint");
    }
    return std::move(pickle_);
  }

 private:
  using Id = uint32_t;

  Error wrong(const std::string& what) const {
    return Error(EBADMSG, "not a pickle that can be read: byte " + std::to_string(began_) + ": " + what);
  }

  // Takes `size` bytes of the input.
  Result<std::string_view> take(uint64_t size) {
    if (size > bytes_.size() - at_) return wrong("it is cut short");
    const std::string_view taken(bytes_.data() + at_, size);
    at_ += size;
    return taken;
  }

  // A little-endian number, as all are except BINFLOAT.
  template <class T>
  Result<T> number() {
    static_assert(std::endian::native == std::endian::little);
    TRY_ASSIGN(const std::string_view taken, take(sizeof(T)));
    T value{};
    std::memcpy(&value, taken.data(), sizeof(T));
    return value;
  }

  template <class Length>
  Result<std::string_view> counted() {
    TRY_ASSIGN(const auto length, number<Length>());
    return take(length);
  }

  Result<std::string_view> line() {
    const auto from = bytes_.begin() + static_cast<std::ptrdiff_t>(at_);
    const auto end = std::find(from, bytes_.end(), '\n');
    if (end == bytes_.end()) return wrong("it is cut short");
    TRY_ASSIGN(const std::string_view taken, take(static_cast<uint64_t>(end - from)));
    TRY(take(1));
    return taken;
  }

  Result<> push(Id id) {
    if (++pushes_ > Pickle::kMostValues) {
      return wrong("it has more than " + std::to_string(Pickle::kMostValues) + " values");
    }
    stack_.push_back(id);
    return success();
  }

  Id make(Kind kind, uint32_t where, uint64_t payload) {
    memory_ += sizeof(Pickle::Node);
    pickle_.nodes_.push_back({kind, where, payload});
    return static_cast<Id>(pickle_.nodes_.size() - 1);
  }

  Result<> push_new(Kind kind, uint32_t where = 0, uint64_t payload = 0) { return push(make(kind, where, payload)); }

  Result<> push_text(Kind kind, Result<std::string_view> text) {
    if (!text) return std::move(text).error();
    return push_new(kind, static_cast<uint32_t>(text.value().data() - bytes_.data()), text.value().size());
  }

  Result<> push_growing(Kind kind) {
    memory_ += sizeof(Pickle::Growing);
    pickle_.growing_.emplace_back();
    return push_new(kind, static_cast<uint32_t>(pickle_.growing_.size() - 1));
  }

  // The depth as Python sees it: values below the last mark do not count.
  size_t depth() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  Result<Id> pop() {
    if (depth() == 0) return wrong("its stack is empty");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }

  Result<Id> top() const {
    if (depth() == 0) return wrong("its stack is empty");
    return stack_.back();
  }

  // Pops the last mark and all values above it, which it returns.
  Result<std::vector<Id>> pop_to_mark() {
    if (marks_.empty()) return wrong("there is no mark");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Id> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }

  Result<> push_tuple(const std::vector<Id>& items) {
    const auto where = static_cast<uint32_t>(pickle_.tuples_.size());
    memory_ += items.size() * sizeof(Id);
    pickle_.tuples_.insert(pickle_.tuples_.end(), items.begin(), items.end());
    return push_new(Kind::tuple, where, items.size());
  }

  Result<> push_tuple_of(size_t count) {
    std::vector<Id> items(count);
    for (size_t at = count; at > 0; --at) {
      TRY_ASSIGN(items[at - 1], pop());
    }
    return push_tuple(items);
  }

  Result<> push_global(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > kLongestGlobal) return wrong("a name that Python would import is too long");
    memory_ += sizeof(Pickle::Global);
    pickle_.globals_.push_back({module, name});
    return push_new(Kind::global, static_cast<uint32_t>(pickle_.globals_.size() - 1));
  }

  Result<std::string_view> pop_text() {
    TRY_ASSIGN(const Id id, pop());
    const auto text = Pickle::Value(&pickle_, id).text();
    if (!text) return wrong("a name is not a text");
    return *text;
  }

  // The items of a list, a set, a dict or an object. Null: the value can have none.
  Pickle::Growing* growing(Id id) {
    const Pickle::Node& node = pickle_.nodes_[id];
    if (node.kind == Kind::object) return &pickle_.objects_[node.where].given;
    const bool grows = node.kind == Kind::list || node.kind == Kind::set || node.kind == Kind::dict;
    return grows ? &pickle_.growing_[node.where] : nullptr;
  }

  Result<> append(const std::vector<Id>& items, bool as_pairs) {
    TRY_ASSIGN(const Id target, top());
    const Kind kind = pickle_.nodes_[target].kind;
    Pickle::Growing* const grown = growing(target);
    const bool fits = kind == Kind::object || (kind == Kind::dict) == as_pairs;
    if (grown == nullptr || !fits || (as_pairs && items.size() % 2 != 0)) return wrong("nothing can be appended here");
    // Of an object only pairs are kept. Torch writes no object that is both a list and a mapping.
    if (kind == Kind::object && !as_pairs) return success();
    // The first items take a block of memory of their own.
    memory_ += (grown->items.empty() ? 2 * sizeof(void*) : 0) + items.size() * sizeof(Id);
    grown->items.insert(grown->items.end(), items.begin(), items.end());
    return success();
  }

  Result<> append_top(size_t count, bool as_pairs) {
    std::vector<Id> items(count);
    for (size_t at = count; at > 0; --at) {
      TRY_ASSIGN(items[at - 1], pop());
    }
    return append(items, as_pairs);
  }

  Result<> append_to_mark(bool as_pairs) {
    TRY_ASSIGN(const auto items, pop_to_mark());
    return append(items, as_pairs);
  }

  // Pushes what the call would return.
  Result<> call(Id callable, Id arguments) {
    const Pickle::Value what(&pickle_, callable), with(&pickle_, arguments);
    if (with.kind() != Kind::tuple) return wrong("arguments are not a tuple");
    if (what.kind() == Kind::global) {
      const std::string name = what.name();
      if (name == "torch.Size" && with.size() == 1) return push(with[0].index());
      const bool is_dict = name == "collections.OrderedDict" && with.size() == 0;
      if (is_dict || name == "collections.defaultdict") return push_growing(Kind::dict);
    }
    memory_ += sizeof(Pickle::Object);
    pickle_.objects_.push_back({callable, arguments, {}});
    return push_new(Kind::object, static_cast<uint32_t>(pickle_.objects_.size() - 1));
  }

  // `parts` are on the stack. NEWOBJ_EX has keywords behind the arguments, which are not kept.
  Result<> call_top(size_t parts) {
    if (parts == 3) TRY(pop());
    TRY_ASSIGN(const Id arguments, pop());
    TRY_ASSIGN(const Id callable, pop());
    return call(callable, arguments);
  }

  Result<> build() {
    TRY_ASSIGN(const Id state, pop());
    TRY_ASSIGN(const Id target, top());
    Pickle::Growing* const built = growing(target);
    if (built == nullptr) return wrong("nothing here can have a state");
    built->state = state;
    return success();
  }

  Result<> remember(uint32_t slot) {
    TRY_ASSIGN(const Id id, top());
    if (slot >= Pickle::kMostValues) return wrong("its memo is larger than that of any pickle that Python writes");
    if (slot >= memo_.size()) memo_.resize(slot + 1, kNothing);
    remembered_ = std::max(remembered_, slot + 1);
    memo_[slot] = id;
    return success();
  }

  Result<> recall(uint32_t slot) {
    if (slot >= memo_.size() || memo_[slot] == kNothing) return wrong("it refers to what was not there yet");
    return push(memo_[slot]);
  }

  template <class T>
  Result<> integer() {
    TRY_ASSIGN(const T value, number<T>());
    return push_new(Kind::integer, 0, static_cast<uint64_t>(static_cast<int64_t>(value)));
  }

  template <class Length>
  Result<> long_integer() {
    TRY_ASSIGN(const std::string_view digits, counted<Length>());
    if (digits.size() > sizeof(int64_t)) return push_text(Kind::big_integer, digits);
    const bool negative = !digits.empty() && (static_cast<uint8_t>(digits.back()) & 0x80) != 0;
    int64_t value = negative ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return push_new(Kind::integer, 0, static_cast<uint64_t>(value));
  }

  Result<> real() {
    TRY_ASSIGN(const std::string_view big_endian, take(sizeof(uint64_t)));
    uint64_t bits = 0;
    for (const char c : big_endian) bits = bits << 8 | static_cast<uint8_t>(c);
    return push_new(Kind::real, 0, bits);
  }

  Result<> global() {
    TRY_ASSIGN(const std::string_view module, line());
    TRY_ASSIGN(const std::string_view name, line());
    return push_global(module, name);
  }

  Result<> stack_global() {
    TRY_ASSIGN(const std::string_view name, pop_text());
    TRY_ASSIGN(const std::string_view module, pop_text());
    return push_global(module, name);
  }

  template <class Slot>
  Result<> put() {
    TRY_ASSIGN(const Slot slot, number<Slot>());
    return remember(slot);
  }

  template <class Slot>
  Result<> get() {
    TRY_ASSIGN(const Slot slot, number<Slot>());
    return recall(slot);
  }

  Result<> tuple_to_mark() {
    TRY_ASSIGN(const auto items, pop_to_mark());
    return push_tuple(items);
  }

  Result<> frozen_set() {
    TRY_ASSIGN(const auto items, pop_to_mark());
    TRY(push_growing(Kind::set));
    return append(items, false);
  }

  Result<> persistent() {
    TRY_ASSIGN(const Id id, pop());
    return push_new(Kind::persistent, id);
  }

  Result<> duplicate() {
    TRY_ASSIGN(const Id id, top());
    return push(id);
  }

  Result<> drop() {
    if (depth() > 0 || marks_.empty()) {
      TRY(pop());
    } else {
      marks_.pop_back();
    }
    return success();
  }

  Result<> mark() {
    if (++pushes_ > Pickle::kMostValues) return wrong("it has too many marks");
    marks_.push_back(stack_.size());
    return success();
  }

  Result<> stop() {
    TRY_ASSIGN(pickle_.root_, pop());
    done_ = true;
    return success();
  }

  Result<> protocol() {
    TRY_ASSIGN(const uint8_t version, number<uint8_t>());
    if (version < 2 || version > 5) return wrong("protocol " + std::to_string(version) + " is not known");
    return success();
  }

  template <class T>
  static Result<> without_value(Result<T> result) {
    TRY(result);
    return success();
  }

  // The names are those of pickletools.
  Result<> step(uint8_t opcode) {
    switch (opcode) {
      case 0x80:
        return protocol();
      case 0x95:
        return without_value(number<uint64_t>());  // FRAME: how much to read ahead
      case '.':
        return stop();
      case '(':
        return mark();
      case '0':
        return drop();
      case '1':
        return without_value(pop_to_mark());
      case '2':
        return duplicate();
      case 'c':
        return global();
      case 0x93:
        return stack_global();  // STACK_GLOBAL
      case 'R':
        return call_top(2);
      case 0x81:
        return call_top(2);  // NEWOBJ
      case 0x92:
        return call_top(3);  // NEWOBJ_EX
      case 'b':
        return build();
      case 'q':
        return put<uint8_t>();
      case 'r':
        return put<uint32_t>();
      case 0x94:
        return remember(remembered_);  // MEMOIZE
      case 'h':
        return get<uint8_t>();
      case 'j':
        return get<uint32_t>();
      case 'Q':
        return persistent();
      default:
        return step_collection(opcode);
    }
  }

  // Opcodes of lists, dicts, sets and tuples.
  Result<> step_collection(uint8_t opcode) {
    switch (opcode) {
      case ']':
        return push_growing(Kind::list);
      case '}':
        return push_growing(Kind::dict);
      case 0x8f:
        return push_growing(Kind::set);  // EMPTY_SET
      case 'a':
        return append_top(1, false);
      case 'e':
        return append_to_mark(false);
      case 's':
        return append_top(2, true);
      case 'u':
        return append_to_mark(true);
      case 0x90:
        return append_to_mark(false);  // ADDITEMS
      case 0x91:
        return frozen_set();  // FROZENSET
      case ')':
        return push_tuple({});
      case 't':
        return tuple_to_mark();
      case 0x85:
        return push_tuple_of(1);  // TUPLE1
      case 0x86:
        return push_tuple_of(2);  // TUPLE2
      case 0x87:
        return push_tuple_of(3);  // TUPLE3
      default:
        return step_constant(opcode);
    }
  }

  // Opcodes that push a value which they carry themselves.
  Result<> step_constant(uint8_t opcode) {
    switch (opcode) {
      case 'N':
        return push_new(Kind::none);
      case 0x88:
        return push_new(Kind::boolean, 0, 1);  // NEWTRUE
      case 0x89:
        return push_new(Kind::boolean, 0, 0);  // NEWFALSE
      case 'J':
        return integer<int32_t>();
      case 'K':
        return integer<uint8_t>();
      case 'M':
        return integer<uint16_t>();
      case 0x8a:
        return long_integer<uint8_t>();  // LONG1
      case 0x8b:
        return long_integer<uint32_t>();  // LONG4
      case 'G':
        return real();
      case 'X':
        return push_text(Kind::text, counted<uint32_t>());
      case 0x8c:
        return push_text(Kind::text, counted<uint8_t>());  // SHORT_BINUNICODE
      case 0x8d:
        return push_text(Kind::text, counted<uint64_t>());  // BINUNICODE8
      case 'T':
        return push_text(Kind::text, counted<uint32_t>());
      case 'U':
        return push_text(Kind::text, counted<uint8_t>());
      case 'B':
        return push_text(Kind::bytes, counted<uint32_t>());
      case 'C':
        return push_text(Kind::bytes, counted<uint8_t>());
      case 0x8e:
        return push_text(Kind::bytes, counted<uint64_t>());  // BINBYTES8
      case 0x96:
        return push_text(Kind::bytes, counted<uint64_t>());  // BYTEARRAY8
      default:
        return wrong("opcode " + std::to_string(opcode) + " is not one that torch writes");
    }
  }

  static constexpr size_t kLongestGlobal = 1024;
  static constexpr Id kNothing = std::numeric_limits<Id>::max();

  Pickle pickle_;
  const std::string& bytes_;  // of pickle_
  size_t at_ = 0;
  size_t began_ = 0;  // the opcode that is being read
  size_t pushes_ = 0;
  size_t memory_ = 0;  // bytes of the values
  bool done_ = false;
  std::vector<Id> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::vector<Id> memo_;
  uint32_t remembered_ = 0;  // one past the highest slot
};

Result<Pickle> read_pickle(std::string bytes) {
  if (bytes.size() > Pickle::kMostBytes) {
    return Error(EBADMSG, "a pickle of " + std::to_string(bytes.size()) + " bytes: at most " +
                              std::to_string(Pickle::kMostBytes) + " are read");
  }
  return PickleReader(std::move(bytes)).read();
}

}  // namespace ckptfs::meta::formats
