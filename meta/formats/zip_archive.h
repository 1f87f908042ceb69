// Reads a zip file whose entries are stored without compression: their names and their places. Reads only the
// directory, and the header of each entry that is requested.
//
// Format: PKWARE's APPNOTE.TXT, 4.3. The end record (4.3.16) points to the directory (4.3.12). In files of more than 4
// GiB or 65,535 entries, a locator (4.3.15) points to a second end record (4.3.14), which points to the directory. Each
// entry of the directory points to a local header (4.3.7), and the entry's bytes follow that header.
//
// Memory is bounded: the directory itself, and some 60 bytes per entry. Entries are looked up in a sorted table,
// because whoever writes a zip could make all hashes collide.
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

// A range of a file.
struct FileRange {
  uint64_t offset = 0;
  uint64_t size = 0;
};

class ZipArchive {
 public:
  // `file` is open for reading, and must stay open as long as the archive. `part` is the range of the zip in it. Fails
  // with EBADMSG if it is no zip, and with ENODATA if it is only the beginning of one.
  static Result<ZipArchive> open(const io::LimitedFile& file, const FileRange& part);

  uint64_t entries() const { return entries_.size(); }
  std::string_view name(uint64_t entry) const;
  // If several entries have the name, the first one is found.
  std::optional<uint64_t> find(std::string_view name) const;
  // Returns where the entry's bytes are in the file. Fails with ENOTSUP if the entry is compressed or encrypted.
  Result<FileRange> range(uint64_t entry) const;
  // Returns the entry's content, of at most `most` bytes. The checksum is not verified.
  Result<std::string> read(uint64_t entry, uint64_t most) const;

 private:
  struct Entry {
    uint32_t name = 0;  // offset in the directory
    uint16_t name_size = 0;
    bool plain = false;   // neither compressed nor encrypted
    uint64_t header = 0;  // offset in the zip
    uint64_t size = 0;
  };

  ZipArchive(const io::LimitedFile& file, const FileRange& part) : file_(file), part_(part) {}
  Result<> add_entries(uint64_t count);
  Result<size_t> add_entry(size_t at);

  io::LimitedFile file_;
  FileRange part_;
  std::string directory_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_name_;  // indices into entries_, sorted
};

}  // namespace ckptfs::meta::formats
