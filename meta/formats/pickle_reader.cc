#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "meta/formats/pickle.h"

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
      if (memory_ + (stack_.size() + memo_.size()) * sizeof(Id) > Pickle::kMostMemory)
        return wrong("its values take more memory than those of any checkpoint");
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
    if (stack_.size() == Pickle::kMostMarks) return wrong("its stack is too deep");
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

  // Pops the values above that height of the stack, and returns them.
  std::vector<Id> pop_above(size_t height) {
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(height);
    std::vector<Id> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    return items;
  }

  Result<std::vector<Id>> pop(size_t count) {
    if (depth() < count) return wrong("its stack is empty");
    return pop_above(stack_.size() - count);
  }

  // Pops the last mark, too, and returns the values above it.
  Result<std::vector<Id>> pop_to_mark() {
    if (marks_.empty()) return wrong("there is no mark");
    const size_t height = marks_.back();
    marks_.pop_back();
    return pop_above(height);
  }

  Result<> push_tuple(Result<std::vector<Id>> popped) {
    TRY_ASSIGN(const auto items, std::move(popped));
    const auto where = static_cast<uint32_t>(pickle_.tuples_.size());
    memory_ += items.size() * sizeof(Id);
    pickle_.tuples_.insert(pickle_.tuples_.end(), items.begin(), items.end());
    return push_new(Kind::tuple, where, items.size());
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

  Result<> append(Result<std::vector<Id>> popped, bool as_pairs) {
    TRY_ASSIGN(const auto items, std::move(popped));
    TRY_ASSIGN(const Id target, top());
    const Kind kind = pickle_.nodes_[target].kind;
    Pickle::Growing* const grown = Pickle::growing(pickle_, target);
    const bool fits = kind == Kind::object || (kind == Kind::dict) == as_pairs;
    if (grown == nullptr || !fits || (as_pairs && items.size() % 2 != 0)) return wrong("nothing can be appended here");
    // Of an object only pairs are kept. Torch writes no object that is both a list and a mapping.
    if (kind == Kind::object && !as_pairs) return success();
    // The first items take a block of memory of their own.
    memory_ += (grown->items.empty() ? 2 * sizeof(void*) : 0) + items.size() * sizeof(Id);
    grown->items.insert(grown->items.end(), items.begin(), items.end());
    return success();
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
    Pickle::Growing* const built = Pickle::growing(pickle_, target);
    if (built == nullptr) return wrong("nothing here can have a state");
    built->state = state;
    return success();
  }

  Result<> remember(uint32_t slot) {
    TRY_ASSIGN(const Id id, top());
    if (slot > pushes_) return wrong("its memo is larger than that of any pickle that Python writes");
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

  Result<> frozen_set() {
    TRY_ASSIGN(auto items, pop_to_mark());
    TRY(push_growing(Kind::set));
    return append(std::move(items), false);
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
    if (marks_.size() == Pickle::kMostMarks) return wrong("it has too many marks");
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

  using Step = Result<> (*)(PickleReader&);

  // What each opcode does. The names are those of pickletools.
  static constexpr std::array<Step, 256> steps() {
    using R = PickleReader&;
    std::array<Step, 256> does{};
    does[0x80] = [](R r) { return r.protocol(); };
    does[0x95] = [](R r) { return r.without_value(r.number<uint64_t>()); };  // FRAME: how much to read ahead
    does['.'] = [](R r) { return r.stop(); };
    does['('] = [](R r) { return r.mark(); };
    does['0'] = [](R r) { return r.drop(); };
    does['1'] = [](R r) { return r.without_value(r.pop_to_mark()); };
    does['2'] = [](R r) { return r.duplicate(); };
    does['c'] = [](R r) { return r.global(); };
    does[0x93] = [](R r) { return r.stack_global(); };  // STACK_GLOBAL
    does['R'] = [](R r) { return r.call_top(2); };
    does[0x81] = [](R r) { return r.call_top(2); };  // NEWOBJ
    does[0x92] = [](R r) { return r.call_top(3); };  // NEWOBJ_EX
    does['b'] = [](R r) { return r.build(); };
    does['q'] = [](R r) { return r.put<uint8_t>(); };
    does['r'] = [](R r) { return r.put<uint32_t>(); };
    does[0x94] = [](R r) { return r.remember(r.remembered_); };  // MEMOIZE
    does['h'] = [](R r) { return r.get<uint8_t>(); };
    does['j'] = [](R r) { return r.get<uint32_t>(); };
    does['Q'] = [](R r) { return r.persistent(); };
    does[']'] = [](R r) { return r.push_growing(Kind::list); };
    does['}'] = [](R r) { return r.push_growing(Kind::dict); };
    does[0x8f] = [](R r) { return r.push_growing(Kind::set); };  // EMPTY_SET
    does['a'] = [](R r) { return r.append(r.pop(1), false); };
    does['e'] = [](R r) { return r.append(r.pop_to_mark(), false); };
    does['s'] = [](R r) { return r.append(r.pop(2), true); };
    does['u'] = [](R r) { return r.append(r.pop_to_mark(), true); };
    does[0x90] = [](R r) { return r.append(r.pop_to_mark(), false); };  // ADDITEMS
    does[0x91] = [](R r) { return r.frozen_set(); };                    // FROZENSET
    does[')'] = [](R r) { return r.push_tuple(r.pop(0)); };
    does['t'] = [](R r) { return r.push_tuple(r.pop_to_mark()); };
    does[0x85] = [](R r) { return r.push_tuple(r.pop(1)); };  // TUPLE1
    does[0x86] = [](R r) { return r.push_tuple(r.pop(2)); };  // TUPLE2
    does[0x87] = [](R r) { return r.push_tuple(r.pop(3)); };  // TUPLE3
    does['N'] = [](R r) { return r.push_new(Kind::none); };
    does[0x88] = [](R r) { return r.push_new(Kind::boolean, 0, 1); };  // NEWTRUE
    does[0x89] = [](R r) { return r.push_new(Kind::boolean, 0, 0); };  // NEWFALSE
    does['J'] = [](R r) { return r.integer<int32_t>(); };
    does['K'] = [](R r) { return r.integer<uint8_t>(); };
    does['M'] = [](R r) { return r.integer<uint16_t>(); };
    does[0x8a] = [](R r) { return r.long_integer<uint8_t>(); };   // LONG1
    does[0x8b] = [](R r) { return r.long_integer<uint32_t>(); };  // LONG4
    does['G'] = [](R r) { return r.real(); };
    does['X'] = [](R r) { return r.push_text(Kind::text, r.counted<uint32_t>()); };
    does[0x8c] = [](R r) { return r.push_text(Kind::text, r.counted<uint8_t>()); };   // SHORT_BINUNICODE
    does[0x8d] = [](R r) { return r.push_text(Kind::text, r.counted<uint64_t>()); };  // BINUNICODE8
    does['T'] = [](R r) { return r.push_text(Kind::text, r.counted<uint32_t>()); };
    does['U'] = [](R r) { return r.push_text(Kind::text, r.counted<uint8_t>()); };
    does['B'] = [](R r) { return r.push_text(Kind::bytes, r.counted<uint32_t>()); };
    does['C'] = [](R r) { return r.push_text(Kind::bytes, r.counted<uint8_t>()); };
    does[0x8e] = [](R r) { return r.push_text(Kind::bytes, r.counted<uint64_t>()); };  // BINBYTES8
    does[0x96] = [](R r) { return r.push_text(Kind::bytes, r.counted<uint64_t>()); };  // BYTEARRAY8
    return does;
  }

  Result<> step(uint8_t opcode) {
    static constexpr std::array<Step, 256> kSteps = steps();
    if (kSteps[opcode] != nullptr) return kSteps[opcode](*this);
    return wrong("opcode " + std::to_string(opcode) + " is not one that torch writes");
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
