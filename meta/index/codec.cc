#include "meta/index/codec.h"

#include <endian.h>

#include <algorithm>
#include <concepts>
#include <cstring>
#include <map>
#include <optional>

namespace ckptfs::meta {
namespace {

// RecordWriter and RecordReader have the same calls, so that fields() tells once what a record holds, and in which
// order.
class RecordWriter {
 public:
  RecordWriter() : bytes_(1, kValueVersion) {}

  template <class Number>
  RecordWriter& u8(Number v) {
    return raw(static_cast<uint8_t>(v));
  }
  template <class Number>
  RecordWriter& u32(Number v) {
    return raw(htole32(static_cast<uint32_t>(v)));
  }
  RecordWriter& u64(uint64_t v) { return raw(htole64(v)); }
  RecordWriter& flags(uint32_t v, uint32_t written) { return u32(v & written); }
  RecordWriter& bits(bool first, bool second, bool third) {
    return u8((first ? 1 : 0) | (second ? 2 : 0) | (third ? 4 : 0));
  }
  template <class Enum>
  RecordWriter& one_up_to(Enum /*last*/, Enum v) {
    return u8(v);
  }
  // 0 if there is none, else the number or enum plus 1.
  RecordWriter& optional(const std::optional<uint64_t>& v) { return u64(v ? *v + 1 : 0); }
  template <class Enum>
  RecordWriter& optional_up_to(Enum /*last*/, const std::optional<Enum>& v) {
    return u8(v ? static_cast<uint8_t>(*v) + 1 : 0);
  }
  RecordWriter& time(const timespec& t) { return u64(static_cast<uint64_t>(t.tv_sec)).u32(t.tv_nsec); }
  RecordWriter& text(std::string_view s) {
    u32(s.size());
    bytes_.append(s);
    return *this;
  }
  RecordWriter& digest(const io::Digest& digest) { return raw(digest); }
  // A list: its length, then each item.
  template <class Items, class One>
  RecordWriter& each(const Items& items, const One& one) {
    u32(items.size());
    for (const auto& item : items) one(item);
    return *this;
  }
  // A list of names, each with what belongs to it.
  template <class Values, class One>
  RecordWriter& each_named(const std::map<std::string, Values>& values, const One& one) {
    return each(values, [&](const auto& value) {
      text(value.first);
      one(value.second);
    });
  }

  std::string take() { return std::move(bytes_); }

 private:
  template <class T>
  RecordWriter& raw(const T& v) {
    bytes_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  std::string bytes_;
};

// A read past the end gives zeros and makes the whole value bad.
class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : rest_(bytes) { good_ = raw<uint8_t>() == kValueVersion && good_; }

  template <class Number>
  RecordReader& u8(Number& v) {
    v = static_cast<Number>(raw<uint8_t>());
    return *this;
  }
  template <class Number>
  RecordReader& u32(Number& v) {
    v = static_cast<Number>(le32toh(raw<uint32_t>()));
    return *this;
  }
  RecordReader& u64(uint64_t& v) {
    v = le64toh(raw<uint64_t>());
    return *this;
  }
  RecordReader& flags(uint32_t& v, uint32_t /*written*/) { return u32(v); }
  RecordReader& bits(bool& first, bool& second, bool& third) {
    const auto all = raw<uint8_t>();
    first = (all & 1) != 0;
    second = (all & 2) != 0;
    third = (all & 4) != 0;
    return *this;
  }
  // A value of an enum whose largest value is `last`.
  template <class Enum>
  RecordReader& one_up_to(Enum last, Enum& v) {
    const auto value = raw<uint8_t>();
    good_ = good_ && value <= static_cast<uint8_t>(last);
    v = static_cast<Enum>(good_ ? value : 0);
    return *this;
  }
  RecordReader& optional(std::optional<uint64_t>& v) {
    const uint64_t value = le64toh(raw<uint64_t>());
    if (value != 0) v = value - 1;
    return *this;
  }
  template <class Enum>
  RecordReader& optional_up_to(Enum last, std::optional<Enum>& v) {
    const auto value = raw<uint8_t>();
    if (value != 0) v = static_cast<Enum>(value - 1);
    good_ = good_ && value <= static_cast<uint8_t>(last) + 1;
    return *this;
  }
  RecordReader& time(timespec& t) {
    t.tv_sec = static_cast<time_t>(le64toh(raw<uint64_t>()));
    return u32(t.tv_nsec);
  }
  RecordReader& text(std::string& s) {
    const size_t size = le32toh(raw<uint32_t>());
    good_ = good_ && size <= rest_.size();
    s = rest_.substr(0, good_ ? size : 0);
    rest_.remove_prefix(s.size());
    return *this;
  }
  RecordReader& digest(io::Digest& digest) {
    digest = raw<io::Digest>();
    return *this;
  }
  // Reads as many items as the list says, unless the value ends before.
  template <class Items, class One>
  RecordReader& each(Items& items, const One& one) {
    for (auto left = le32toh(raw<uint32_t>()); left > 0 && good_; --left) one(items.emplace_back());
    return *this;
  }
  template <class Values, class One>
  RecordReader& each_named(std::map<std::string, Values>& values, const One& one) {
    for (auto left = le32toh(raw<uint32_t>()); left > 0 && good_; --left) {
      std::string name;
      text(name);
      Values& value = values[std::move(name)];
      value = {};
      one(value);
    }
    return *this;
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

// `record` is constant for a RecordWriter.
template <class Record, class Of>
concept RecordOf = std::same_as<std::remove_const_t<Record>, Of>;

void fields(auto& code, RecordOf<InodeRecord> auto& r) {
  code.u32(r.mode).u32(r.uid).u32(r.gid).u32(r.nlink).u64(r.rdev).flags(r.flags, ~uint32_t{kRecovered});
  code.u64(r.parent).u64(r.blob).u64(r.saved_blob).u64(r.cow_reserve).u64(r.size).u64(r.blocks);
  code.time(r.atime).time(r.mtime).time(r.ctime).u64(r.newest_writer).text(S_ISLNK(r.mode) ? r.target : r.name);
}

void fields(auto& code, RecordOf<BlobRecord> auto& r) {
  code.u8(r.state).u64(r.references).u64(r.length);
  code.u8(r.digest.state).u64(r.digest.length).time(r.digest.mtime).digest(r.digest.root);
}

void fields(auto& code, RecordOf<StepRecord> auto& r) {
  code.u64(r.source).time(r.saved).bits(r.sealed, r.pinned, r.being_removed).text(r.stale).u64(r.number);
}

void fields(auto& code, RecordOf<EntryRecord> auto& r) { code.u64(r.inode).u32(r.type); }

void fields(auto& code, RecordOf<SuspectRecord> auto& r) { code.u64(r.file).u32(r.errno_value); }

void fields(auto& code, RecordOf<formats::Tensor> auto& tensor) {
  code.one_up_to(formats::kLastDtype, tensor.dtype).each(tensor.shape, [&](auto& length) { code.u64(length); });
  code.each(tensor.pieces, [&](auto& piece) { code.u32(piece.file).u64(piece.offset).u64(piece.size); });
}

void fields(auto& code, RecordOf<formats::Parameter> auto& parameter) {
  code.text(parameter.name).one_up_to(formats::Parameter::Kind::resume, parameter.kind).optional(parameter.ds_id);
  code.each_named(parameter.states, [&](auto& tensor) { fields(code, tensor); });
}

void fields(auto& code, RecordOf<KeptMap> auto& kept) {
  auto& map = kept.map;
  code.digest(kept.version).text(map.names_from).optional_up_to(formats::kLastDtype, map.computes_in);
  code.each(map.parameters, [&](auto& parameter) { fields(code, parameter); });
  code.each(map.tied, [&](auto& tied) { code.text(tied.name).text(tied.same_as); });
  code.each(map.undivided,
            [&](auto& swap) { code.u64(swap.first).u64(swap.last).u32(swap.rank).text(swap.state).u32(swap.file); });
}

template <class Record>
std::string written_record(const Record& record) {
  RecordWriter writer;
  fields(writer, record);
  return writer.take();
}

template <class Record>
Result<Record> read_record(std::string_view value, const char* what) {
  RecordReader reader(value);
  Record record;
  fields(reader, record);
  return reader.finish(std::move(record), what);
}

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

std::string encode(const InodeRecord& record) { return written_record(record); }
std::string encode(const BlobRecord& record) { return written_record(record); }
std::string encode(const StepRecord& record) { return written_record(record); }
std::string encode(const EntryRecord& record) { return written_record(record); }
std::string encode(const SuspectRecord& record) { return written_record(record); }
std::string encode(const KeptMap& map) { return written_record(map); }

Result<InodeRecord> decode_inode(std::string_view value) { return read_record<InodeRecord>(value, "inode"); }
Result<BlobRecord> decode_blob(std::string_view value) { return read_record<BlobRecord>(value, "blob"); }
Result<StepRecord> decode_step(std::string_view value) { return read_record<StepRecord>(value, "step"); }
Result<EntryRecord> decode_entry(std::string_view value) { return read_record<EntryRecord>(value, "entry"); }
Result<SuspectRecord> decode_suspect(std::string_view value) { return read_record<SuspectRecord>(value, "suspect"); }
Result<KeptMap> decode_map(std::string_view value) { return read_record<KeptMap>(value, "map"); }

std::string encode(std::span<const io::Digest> digests) {
  RecordWriter writer;
  for (const io::Digest& digest : digests) writer.digest(digest);
  return writer.take();
}

Result<std::vector<io::Digest>> decode_digests(std::string_view value) {
  RecordReader reader(value);
  std::vector<io::Digest> digests(value.size() / sizeof(io::Digest));  // the version byte fills none
  for (io::Digest& digest : digests) reader.digest(digest);
  return reader.finish(std::move(digests), "digests");
}

std::string encode_number(uint64_t number) { return RecordWriter().u64(number).take(); }

Result<uint64_t> decode_number(std::string_view value) {
  RecordReader reader(value);
  uint64_t number = 0;
  return reader.u64(number).finish(number, "number");
}

}  // namespace ckptfs::meta
