// A part: what one slot holds of a step, in one object. docs/remote-format.md describes its bytes:
//
//   "ckptfs part 1\n"
//   header, JSON, one line           who, what, how many entries and chunks, where the chunks lie
//   entries, JSON, one line each     sorted by the bytes of their paths
//   chunks, 48 bytes each            of all files, in the order of the entries
//
// A slot of 1 TiB has a million chunks, 48 MB of them. So a part is made and read in a nameless file, and only its
// header and its entries are in memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/digest.h"
#include "io/fd.h"
#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/formats/completeness_facts.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

struct Entry {
  enum class Kind { file, folder, link };
  std::string path;  // relative to the step, UTF-8, no "", "." or ".." in it; "" is the step itself, the first entry
  Kind kind = Kind::file;
  mode_t mode = 0;  // the permission bits, up to 07777
  uid_t uid = 0;
  gid_t gid = 0;
  uint64_t size = 0;  // of files
  timespec mtime{};
  std::string target;        // of links
  uint64_t first_chunk = 0;  // of files; set by who adds the entry to a part, or reads it from one

  uint64_t chunks() const { return (size + kChunkBytes - 1) / kChunkBytes; }
};

struct Chunk {
  static constexpr size_t kBytes = 48;  // in a part
  io::Digest digest{};
  uint32_t push = 0;    // index into PartHeader::pushes
  uint32_t pack = 0;    // of that push
  uint32_t offset = 0;  // in the pack
  uint32_t length = 0;  // there; at most kChunkBytes
  uint8_t codec = 0;    // 0: as it is. Nothing else is known yet
};

// The packs of a push that a part uses.
struct UsedPush {
  PushName push;
  std::vector<std::pair<uint32_t, uint32_t>> packs;  // ranges, first and last, in order; finish() fills them in
};

struct PartHeader {
  PushName push;
  uint64_t number = 0;  // a slot counts its parts of a tag from 1. The highest counts
  std::string host;
  std::string mount;             // the id of the store, and the series: another mount has another
  std::string attempt;           // what the step's own files name the attempt by; empty: nothing
  io::Digest content{};          // of all that the slot holds, but its times and where it lies (content_digest)
  std::vector<UsedPush> pushes;  // the first is `push` itself
  std::vector<DecisionName> borrowed_from;  // the commits whose chunks it uses
  std::vector<PushName> unfinished;         // other pushes, without a part, whose packs this slot's journal knew
  formats::CompletenessFacts facts;
  uint64_t entries = 0;
  uint64_t chunks = 0;
  uint64_t bytes = 0;  // of all files
};

// Digests one entry after the other into PartHeader::content: path, kind, mode, owner, size, target and the digests of
// its chunks, as docs/remote-format.md says.
class ContentDigest {
 public:
  ContentDigest();
  void add(const Entry& entry, std::span<const io::Digest> chunks);
  // The same in two steps: the entry, then each of its chunks.
  void begin(const Entry& entry);
  void add_chunk(const io::Digest& chunk);
  io::Digest finish() const { return hasher_.finish(); }

 private:
  io::Hasher hasher_;
};

// A part that lies in a nameless file. Reading is thread-safe.
class Part {
 public:
  // Reads it once, and checks all that can be checked without its packs: paths, kinds, counts, where each chunk lies,
  // and the content's digest. EBADMSG, in words: it is no whole part; EPROTO, naming both: it is of another version.
  static Result<Part> open(io::Fd file);

  const PartHeader& header() const { return header_; }
  const std::vector<Entry>& entries() const { return entries_; }
  // Chunks [first, first + count) of the whole part. EINVAL: it has fewer.
  Result<std::vector<Chunk>> chunks(uint64_t first, uint64_t count) const;
  // The index of the entry of this path.
  std::optional<size_t> find(std::string_view path) const;

  uint64_t size() const { return size_; }
  const io::Digest& digest() const { return digest_; }  // BLAKE3 of the whole object
  io::ObjectContent content() const;                    // this must outlive it

 private:
  friend Result<Part> fetch_part(io::ObjectStore&, const PushName&, const std::optional<io::Digest>&,
                                 const std::string&, const io::RequestLimits&);
  Part() = default;
  static Result<Part> read(io::Fd file, const io::Digest& digest);
  Result<> read_header();
  Result<> read_entries(uint64_t begin);
  Result<> check_entry(const Entry& entry) const;
  Result<> check_chunks() const;
  io::Fd file_;
  uint64_t size_ = 0;
  uint64_t chunks_at_ = 0;
  io::Digest digest_{};
  PartHeader header_;
  std::vector<Entry> entries_;
};

// Makes a part, entry by entry in the order of their paths.
class PartWriter {
 public:
  // `folder`: where the nameless files lie.
  static Result<PartWriter> make(const std::string& folder);
  // `chunks` has as many as the entry's size demands; `push` in them is an index into what finish() gets. EINVAL,
  // naming the entry: its path is not UTF-8, does not come after the last one, or has a name that there cannot be.
  Result<> add(const Entry& entry, std::span<const Chunk> chunks);
  // `header`: entries, chunks, bytes, content, and the packs of each push are filled in here.
  Result<Part> finish(PartHeader header);

 private:
  explicit PartWriter(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
  io::Fd entries_;
  io::Fd chunks_;
  std::string last_path_;
  uint64_t entry_count_ = 0, chunk_count_ = 0, bytes_ = 0, entries_bytes_ = 0;
  std::set<std::pair<uint32_t, uint32_t>> packs_;  // that are used: index of the push, pack
  ContentDigest content_;
};

// Fetches a part into a nameless file in `folder`, in ranges of 16 MiB. `wanted`: EBADMSG, naming the object, if it has
// another digest.
Result<Part> fetch_part(io::ObjectStore& store, const PushName& push, const std::optional<io::Digest>& wanted,
                        const std::string& folder, const io::RequestLimits& limits);
// Only the header, in one or two requests. Its digest is not checked.
Result<PartHeader> fetch_part_header(io::ObjectStore& store, const PushName& push, const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
