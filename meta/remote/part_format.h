// The bytes of a part; docs/remote-format.md describes them for who reads without us:
//
//   "ckptfs part 2\n"
//   header, JSON, one line           who, what, how many entries and chunks
//   entries, JSON, one line each     sorted by the bytes of their paths
//   chunks, 32 bytes each            the digests of all chunks, in the order of the entries
//
// Stateless, but for ContentDigest; any thread. Errors are EBADMSG, in words, unless said otherwise.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/digest.h"
#include "io/result.h"
#include "meta/formats/completeness_facts.h"
#include "meta/remote/layout.h"
#include "meta/remote/save_facts.h"

namespace ckptfs::meta::remote {

// The collector ends a push by taking its part's name, with an object that is no longer than this. A part is longer.
inline constexpr uint64_t kMostEndedBytes = 160;
inline constexpr uint64_t kMostPartBytes = uint64_t{4} << 30;
inline constexpr uint64_t kMostHeaderBytes = uint64_t{16} << 20;  // with the line before it
inline constexpr uint64_t kMostEntries = uint64_t{1} << 20;
inline constexpr size_t kLongestEntry = size_t{1} << 16;  // bytes of its line

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

// A piece of a file, at a multiple of kChunkBytes. It lies in the file's object, at the same place.
struct Chunk {
  io::Digest digest{};
  uint32_t length = 0;  // kChunkBytes, or what is left of the file
};

struct PartHeader {
  PushName push;
  uint32_t slots = 1;     // of the remote
  DecisionName decision;  // the decision about its save ("save")
  Order order;            // of the save on its own mount; slot 0's is that of the decision
  SaveFacts save;         // what tells which save it is ("attempt", "life")
  std::string host;
  std::string mount;     // the id of the store, and the series: another mount has another
  io::Digest content{};  // of all that the slot holds, but its times (ContentDigest)
  io::Digest saved{};    // likewise, of its checkpoint files alone (is_saved())
  formats::CompletenessFacts facts;
  uint64_t entries = 0;
  uint64_t files = 0;  // of them: so many objects
  uint64_t chunks = 0;
  uint64_t bytes = 0;  // of all files

  std::string key_of(const Entry& file) const { return file_key(push, slots, file.path); }
};

// Is it a file of the checkpoint? Notes that are added later, as evaluation results, make no other save of it.
bool is_saved(const Entry& entry);

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

// Likewise into PartHeader::saved: files of the checkpoint alone, whoever owns and may read them.
class SavedDigest {
 public:
  // False: the entry does not count, nor do its chunks.
  bool begin(const Entry& entry);
  void add_chunk(const io::Digest& chunk) { content_.add_chunk(chunk); }
  void add(const Entry& entry, std::span<const io::Digest> chunks);
  io::Digest finish() const { return content_.finish(); }

 private:
  ContentDigest content_;
};

// EINVAL, naming the entry: what can be seen of it alone is wrong, as a path with "..".
Result<> check_alone(const Entry& entry);

// A line, with its end.
std::string text_of(const Entry& entry);
Result<Entry> parse_entry(std::string_view line);

// The part's first two lines.
std::string text_of(const PartHeader& header);
struct TextHeader {
  PartHeader header;
  size_t end = 0;  // of its line
};
// Nothing: the text does not reach to the end of the header. EPROTO, naming both: it is of another version.
Result<std::optional<TextHeader>> parse_begin(std::string_view text);

}  // namespace ckptfs::meta::remote
