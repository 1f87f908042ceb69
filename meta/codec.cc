#include "meta/codec.h"

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
  std::string take() { return std::move(bytes_); }

 private:
  template <class T>
  Encoder& raw(T v) {
    bytes_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  std::string bytes_;
};

// Reads past the end give zeros and make the whole value bad.
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
      .u64(r.owed)
      .u64(r.size)
      .u64(r.blocks)
      .time(r.atime)
      .time(r.mtime)
      .time(r.ctime)
      .u64(r.newest_writer)
      .text(r.target)
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
  r.owed = d.u64();
  r.size = d.u64();
  r.blocks = d.u64();
  r.atime = d.time();
  r.mtime = d.time();
  r.ctime = d.time();
  r.newest_writer = d.u64();
  r.target = d.text();
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
  return Encoder().u64(r.source).time(r.saved).u8(bits).text(r.stale).take();
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

std::string encode(std::span<const io::Digest> digests) { return Encoder().bytes(std::as_bytes(digests)).take(); }

Result<std::vector<io::Digest>> decode_digests(std::string_view value) {
  Decoder d(value);
  std::vector<io::Digest> digests(value.size() / sizeof(io::Digest));  // the version byte fills none
  for (io::Digest& digest : digests) digest = d.digest();
  return d.finish(std::move(digests), "digests");
}

std::string encode_number(uint64_t number) { return Encoder().u64(number).take(); }

Result<uint64_t> decode_number(std::string_view value) {
  Decoder d(value);
  const uint64_t n = d.u64();
  return d.finish(n, "number");
}

}  // namespace ckptfs::meta
