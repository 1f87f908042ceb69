#include "meta/index/codec.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

namespace ckptfs::meta {
namespace {

class Encoder {
 public:
  Encoder() : bytes_(1, kValueVersion) {}
  Encoder& u8(uint8_t v) {
    bytes_.push_back(static_cast<char>(v));
    return *this;
  }
  Encoder& u32(uint32_t v) { return raw(htole32(v)); }
  Encoder& u64(uint64_t v) { return raw(htole64(v)); }
  Encoder& time(const timespec& t) {
    return u64(static_cast<uint64_t>(t.tv_sec)).u32(static_cast<uint32_t>(t.tv_nsec));
  }
  Encoder& text(std::string_view s) {
    u32(static_cast<uint32_t>(s.size()));
    bytes_.append(s);
    return *this;
  }
  Encoder& bytes(std::span<const std::byte> b) {
    bytes_.append(reinterpret_cast<const char*>(b.data()), b.size());
    return *this;
  }
  // A list: its length, then each item.
  template <class Items, class One>
  Encoder& each(const Items& items, One one) {
    u32(static_cast<uint32_t>(items.size()));
    for (const auto& item : items) one(item);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  template <class T>
  Encoder& raw(T v) {
    bytes_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  std::string bytes_;
};

// A read past the end gives zeros and makes the whole value bad.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) { good_ = u8() == kValueVersion && good_; }
  uint8_t u8() { return raw<uint8_t>(); }
  uint32_t u32() { return le32toh(raw<uint32_t>()); }
  uint64_t u64() { return le64toh(raw<uint64_t>()); }
  timespec time() {
    timespec t{};
    t.tv_sec = static_cast<time_t>(u64());
    t.tv_nsec = static_cast<long>(u32());
    return t;
  }
  io::Digest digest() { return raw<io::Digest>(); }
  std::string text() {
    const size_t size = u32();
    if (size > rest_.size()) {
      good_ = false;
      return {};
    }
    std::string s(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return s;
  }
  // Reads as many items as the list says, unless the value ends before.
  template <class One>
  void each(One one) {
    for (uint32_t left = u32(); left > 0 && good_; --left) one();
  }
  // A value of an enum whose largest value is `last`.
  template <class Enum>
  Enum one_up_to(Enum last) {
    const uint8_t value = u8();
    good_ = good_ && value <= static_cast<uint8_t>(last);
    return static_cast<Enum>(good_ ? value : 0);
  }
  template <class T>
  Result<T> finish(T record, const char* what) const {
    if (!good_ || !rest_.empty()) return Error(EIO, std::string("the index holds a damaged ") + what + " record");
    return record;
  }

 private:
  template <class T>
  T raw() {
    T v{};
    if (rest_.size() < sizeof v) {
      good_ = false;
      rest_ = {};
      return v;
    }
    std::memcpy(&v, rest_.data(), sizeof v);
    rest_.remove_prefix(sizeof v);
    return v;
  }
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace

std::string number_key(uint64_t number) {
  const uint64_t be = htobe64(number);
  return {reinterpret_cast<const char*>(&be), sizeof be};
}

std::string digests_key(BlobNumber blob, uint64_t group) { return number_key(blob) + number_key(group); }

std::string name_key(uint64_t number, std::string_view name) {
  std::string key = number_key(number);
  key.append(name);
  return key;
}

uint64_t key_number(std::string_view key) {
  uint64_t be = 0;
  std::memcpy(&be, key.data(), std::min(sizeof be, key.size()));
  return be64toh(be);
}

std::string_view key_name(std::string_view key) { return key.substr(std::min(sizeof(uint64_t), key.size())); }

std::string encode(const InodeRecord& r) {
  return Encoder()
      .u32(r.mode)
      .u32(r.uid)
      .u32(r.gid)
      .u32(r.nlink)
      .u64(r.rdev)
      .u32(r.flags & ~uint32_t{kRecovered})
      .u64(r.parent)
      .u64(r.blob)
      .u64(r.saved_blob)
      .u64(r.cow_reserve)
      .u64(r.size)
      .u64(r.blocks)
      .time(r.atime)
      .time(r.mtime)
      .time(r.ctime)
      .u64(r.newest_writer)
      .text(S_ISLNK(r.mode) ? r.target : r.name)
      .take();
}

Result<InodeRecord> decode_inode(std::string_view value) {
  Decoder d(value);
  InodeRecord r;
  r.mode = d.u32();
  r.uid = d.u32();
  r.gid = d.u32();
  r.nlink = d.u32();
  r.rdev = d.u64();
  r.flags = d.u32();
  r.parent = d.u64();
  r.blob = d.u64();
  r.saved_blob = d.u64();
  r.cow_reserve = d.u64();
  r.size = d.u64();
  r.blocks = d.u64();
  r.atime = d.time();
  r.mtime = d.time();
  r.ctime = d.time();
  r.newest_writer = d.u64();
  (S_ISLNK(r.mode) ? r.target : r.name) = d.text();
  return d.finish(std::move(r), "inode");
}

std::string encode(const BlobRecord& r) {
  return Encoder()
      .u8(static_cast<uint8_t>(r.state))
      .u64(r.references)
      .u64(r.length)
      .u8(static_cast<uint8_t>(r.digest.state))
      .u64(r.digest.length)
      .time(r.digest.mtime)
      .bytes(r.digest.root)
      .take();
}

Result<BlobRecord> decode_blob(std::string_view value) {
  Decoder d(value);
  BlobRecord r;
  r.state = static_cast<BlobState>(d.u8());
  r.references = d.u64();
  r.length = d.u64();
  r.digest.state = static_cast<DigestState>(d.u8());
  r.digest.length = d.u64();
  r.digest.mtime = d.time();
  r.digest.root = d.digest();
  return d.finish(r, "blob");
}

std::string encode(const StepRecord& r) {
  const auto bits = static_cast<uint8_t>((r.sealed ? 1 : 0) | (r.pinned ? 2 : 0) | (r.being_removed ? 4 : 0));
  return Encoder().u64(r.source).time(r.saved).u8(bits).text(r.stale).u64(r.number).take();
}

Result<StepRecord> decode_step(std::string_view value) {
  Decoder d(value);
  StepRecord r;
  r.source = d.u64();
  r.saved = d.time();
  const uint8_t bits = d.u8();
  r.sealed = (bits & 1) != 0;
  r.pinned = (bits & 2) != 0;
  r.being_removed = (bits & 4) != 0;
  r.stale = d.text();
  r.number = d.u64();
  return d.finish(std::move(r), "step");
}

std::string encode(const EntryRecord& r) { return Encoder().u64(r.inode).u32(r.type).take(); }

Result<EntryRecord> decode_entry(std::string_view value) {
  Decoder d(value);
  EntryRecord r;
  r.inode = d.u64();
  r.type = d.u32();
  return d.finish(r, "entry");
}

std::string encode(const SuspectRecord& r) {
  return Encoder().u64(r.file).u32(static_cast<uint32_t>(r.errno_value)).take();
}

Result<SuspectRecord> decode_suspect(std::string_view value) {
  Decoder d(value);
  SuspectRecord r;
  r.file = d.u64();
  r.errno_value = static_cast<int32_t>(d.u32());
  return d.finish(r, "suspect");
}

std::string encode(std::span<const io::Digest> digests) { return Encoder().bytes(std::as_bytes(digests)).take(); }

Result<std::vector<io::Digest>> decode_digests(std::string_view value) {
  Decoder d(value);
  std::vector<io::Digest> digests(value.size() / sizeof(io::Digest));  // the version byte fills none
  for (io::Digest& digest : digests) digest = d.digest();
  return d.finish(std::move(digests), "digests");
}

namespace {

using formats::Dtype;
using formats::Parameter;
using formats::Tensor;
constexpr Dtype kLastDtype = Dtype::complex64;

void encode_tensor(Encoder& e, const Tensor& tensor) {
  e.u8(static_cast<uint8_t>(tensor.dtype));
  e.each(tensor.shape, [&](uint64_t length) { e.u64(length); });
  e.each(tensor.pieces, [&](const formats::Piece& piece) { e.u32(piece.file).u64(piece.offset).u64(piece.size); });
}

Tensor decode_tensor(Decoder& d) {
  Tensor tensor;
  tensor.dtype = d.one_up_to(kLastDtype);
  d.each([&] { tensor.shape.push_back(d.u64()); });
  d.each([&] {
    formats::Piece& piece = tensor.pieces.emplace_back();
    piece.file = d.u32();
    piece.offset = d.u64();
    piece.size = d.u64();
  });
  return tensor;
}

// The ds_id is written as 0 if there is none, else as the id plus 1.
void encode_parameter(Encoder& e, const Parameter& parameter) {
  e.text(parameter.name).u8(static_cast<uint8_t>(parameter.kind)).u64(parameter.ds_id ? *parameter.ds_id + 1 : 0);
  e.each(parameter.states, [&](const auto& state) { encode_tensor(e.text(state.first), state.second); });
}

Parameter decode_parameter(Decoder& d) {
  Parameter parameter;
  parameter.name = d.text();
  parameter.kind = d.one_up_to(Parameter::Kind::resume);
  if (const uint64_t id = d.u64(); id != 0) parameter.ds_id = id - 1;
  d.each([&] {
    std::string state = d.text();
    parameter.states[std::move(state)] = decode_tensor(d);
  });
  return parameter;
}

}  // namespace

std::string encode(const KeptMap& kept) {
  const formats::TensorMap& map = kept.map;
  Encoder e;
  e.bytes(kept.version).text(map.names_from).u8(map.computes_in ? static_cast<uint8_t>(*map.computes_in) + 1 : 0);
  e.each(map.parameters, [&](const Parameter& parameter) { encode_parameter(e, parameter); });
  e.each(map.tied, [&](const formats::Tied& tied) { e.text(tied.name).text(tied.same_as); });
  e.each(map.undivided, [&](const formats::SwapFile& swap) {
    e.u64(swap.first).u64(swap.last).u32(swap.rank).text(swap.state).u32(swap.file);
  });
  return e.take();
}

Result<KeptMap> decode_map(std::string_view value) {
  Decoder d(value);
  KeptMap kept;
  kept.version = d.digest();
  formats::TensorMap& map = kept.map;
  map.names_from = d.text();
  if (const uint8_t dtype = d.u8(); dtype != 0) map.computes_in = static_cast<Dtype>(dtype - 1);
  if (map.computes_in > kLastDtype) return Error(EIO, "the index holds a damaged map record");
  d.each([&] { map.parameters.push_back(decode_parameter(d)); });
  d.each([&] {
    std::string name = d.text();
    map.tied.push_back({std::move(name), d.text()});
  });
  d.each([&] {
    formats::SwapFile& swap = map.undivided.emplace_back();
    swap.first = d.u64();
    swap.last = d.u64();
    swap.rank = d.u32();
    swap.state = d.text();
    swap.file = d.u32();
  });
  return d.finish(std::move(kept), "map");
}

std::string encode_number(uint64_t number) { return Encoder().u64(number).take(); }

Result<uint64_t> decode_number(std::string_view value) {
  Decoder d(value);
  const uint64_t n = d.u64();
  return d.finish(n, "number");
}

}  // namespace ckptfs::meta
