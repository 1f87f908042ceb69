// A zip file whose entries are stored, not compressed: their names, and where they lie. Only its directory is read, and
// of an entry that is asked for the header before it.
//
// Format: PKWARE's APPNOTE.TXT, 4.3: the end of the directory (4.3.16), which leads to the directory (4.3.12), in files
// of more than 4 GiB or 65,535 entries through a locator (4.3.15) and a second end (4.3.14); each entry of the
// directory leads to a header (4.3.7), behind which its bytes lie.
//
// Memory is bounded: the directory itself, and some 60 bytes an entry. What is looked for is found by sorted names: who
// writes a zip could have all hashes be the same.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/read_limit.h"
#include "io/result.h"

namespace ckptfs::meta::formats {

// Bytes of a file.
struct FileRange {
  uint64_t offset = 0;
  uint64_t size = 0;
};

class ZipArchive {
 public:
  // `file`: for reading; it stays open as long as the archive; `part`: where in it
  // the zip lies. EBADMSG: it is no zip; ENODATA: only the beginning of one.
  static Result<ZipArchive> open(const io::LimitedFile& file, const FileRange& part);

  uint64_t entries() const { return entries_.size(); }
  std::string_view name(uint64_t entry) const;
  // Of several of one name the first.
  std::optional<uint64_t> find(std::string_view name) const;
  // Where in the file the bytes of an entry lie that is neither compressed nor encrypted; else ENOTSUP.
  Result<FileRange> range(uint64_t entry) const;
  // The content of such an entry, of at most `most` bytes. Its sum is not looked at.
  Result<std::string> read(uint64_t entry, uint64_t most) const;

 private:
  struct Entry {
    uint32_t name = 0;  // where in the directory
    uint16_t name_size = 0;
    bool plain = false;   // neither compressed nor encrypted
    uint64_t header = 0;  // where in the zip
    uint64_t size = 0;
  };

  ZipArchive(const io::LimitedFile& file, const FileRange& part) : file_(file), part_(part) {}
  Result<> add_entries(uint64_t count);
  Result<size_t> add_entry(size_t at);

  io::LimitedFile file_;
  FileRange part_;
  std::string directory_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_name_;  // indices of entries_
};

}  // namespace ckptfs::meta::formats
