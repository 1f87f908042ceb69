// A zip file whose entries are stored, not compressed, read through libzip: their names, and where they lie.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "io/result.h"

struct zip;

namespace ckptfs::meta::formats {

// Bytes of a file.
struct FileRange {
  uint64_t offset = 0;
  uint64_t size = 0;
};

class ZipArchive {
 public:
  // `file`: a descriptor for reading, which stays the caller's, and open as long as the archive; `part`: where in it
  // the zip lies. EBADMSG: it is no zip; ENODATA: only the beginning of one.
  static Result<ZipArchive> open(int file, const FileRange& part);
  ZipArchive(ZipArchive&&) noexcept;
  ZipArchive& operator=(ZipArchive&&) noexcept;
  ~ZipArchive();

  uint64_t entries() const;
  // Empty: it has none.
  std::string name(uint64_t entry) const;
  std::optional<uint64_t> find(const std::string& name) const;
  // Where in the file the bytes of an entry lie that is neither compressed nor encrypted; else ENOTSUP.
  Result<FileRange> range(uint64_t entry);
  // The content of such an entry, of at most `most` bytes. Its sum is not looked at.
  Result<std::string> read(uint64_t entry, uint64_t most);

 private:
  class Source;
  ZipArchive(std::unique_ptr<Source> source, ::zip* zip);

  std::unique_ptr<Source> source_;
  ::zip* zip_;
};

}  // namespace ckptfs::meta::formats
