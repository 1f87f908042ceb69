// A part: what one slot holds of a step, in one object.
//
// A slot of 1 TiB has a million chunks, 32 MB of digests. So a part is made and read in a nameless file, and only its
// header and its entries are in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/digest.h"
#include "io/fd.h"
#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/layout.h"
#include "meta/remote/part_format.h"

namespace ckptfs::meta::remote {

// A part that lies in a nameless file. Reading is thread-safe.
class Part {
 public:
  // Reads it once, and checks all that can be checked without its files: paths, kinds, counts, and the content's
  // digest. EBADMSG, in words: it is no whole part; EPROTO, naming both: it is of another version.
  static Result<Part> open(io::Fd file);

  const PartHeader& header() const { return header_; }
  const std::vector<Entry>& entries() const { return entries_; }
  // Chunks [first, first + count) of a file of entries(). EINVAL: it has fewer.
  Result<std::vector<Chunk>> chunks(const Entry& file, uint64_t first, uint64_t count) const;
  // The index of the entry of this path.
  std::optional<size_t> find(std::string_view path) const;

  PartName name() const { return {header_.push, digest_, size_, header_.files, header_.bytes}; }
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
  Result<> check_content() const;
  Result<std::vector<io::Digest>> digests(uint64_t first, uint64_t count) const;
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
  // `chunks` has as many as the entry's size demands. EINVAL, naming the entry: its path is not UTF-8, does not come
  // after the last one, or has a name that there cannot be.
  Result<> add(const Entry& entry, std::span<const io::Digest> chunks);
  // `header`: entries, files, chunks, bytes, content and saved are filled in here.
  Result<Part> finish(PartHeader header);

 private:
  explicit PartWriter(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
  io::Fd entries_;
  io::Fd chunks_;
  std::string last_path_;
  uint64_t entry_count_ = 0, file_count_ = 0, chunk_count_ = 0, bytes_ = 0, entries_bytes_ = 0;
  ContentDigest content_;
  SavedDigest saved_;
};

// Does it say that an object is missing, or not what it should be? Else the store could not be asked.
bool is_damage(const Error& error);

// Fetches a part into a nameless file in `folder`, in ranges of 16 MiB. `wanted`: EBADMSG, naming the object, if it has
// another digest.
Result<Part> fetch_part(io::ObjectStore& store, const PushName& push, const std::optional<io::Digest>& wanted,
                        const std::string& folder, const io::RequestLimits& limits);
// Only the header, in one or two requests. Its digest is not checked. ESTALE: the push was ended since it was listed.
Result<PartHeader> fetch_part_header(io::ObjectStore& store, const PushName& push, const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
