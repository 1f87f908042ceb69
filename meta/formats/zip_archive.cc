#include "meta/formats/zip_archive.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

namespace ckptfs::meta::formats {
namespace {

constexpr uint64_t kMostDirectory = uint64_t{16} << 20;  // bytes
constexpr size_t kEnd = 22, kLocator = 20, kWideEnd = 56, kOfEntry = 46, kOfHeader = 30;
constexpr std::string_view kHeaderSignature("PK\3\4", 4), kEntrySignature("PK\1\2", 4), kEndSignature("PK\5\6", 4),
    kLocatorSignature("PK\6\7", 4), kWideEndSignature("PK\6\6", 4);

Error bad_zip(const std::string& what) { return Error(EBADMSG, "not a zip that can be read: " + what); }

// The bytes must be long enough.
template <class T>
T number_at(std::string_view bytes, size_t at) {
  T number{};
  std::memcpy(&number, bytes.data() + at, sizeof(T));
  return number;
}

// Reads a range of the part. Fails if the range exceeds the part.
Result<std::string> part_bytes(const io::LimitedFile& file, const FileRange& part, uint64_t offset, uint64_t size) {
  if (offset > part.size || size > part.size - offset) return bad_zip("it leads to what lies behind its end");
  std::string bytes(size, '\0');
  TRY_ASSIGN(const size_t got, file.read_full(std::as_writable_bytes(std::span(bytes)), part.offset + offset));
  if (got < size) return bad_zip("it is cut short");
  return bytes;
}

// Without an end record, the part may be the beginning of a zip whose writer did not finish.
Error no_end(const io::LimitedFile& file, const FileRange& part) {
  const auto first = part_bytes(file, part, 0, std::min<uint64_t>(part.size, kHeaderSignature.size()));
  if (!first) return first.error();
  if (kHeaderSignature.starts_with(first.value())) return Error(ENODATA, "it was not written to its end");
  return bad_zip("it has no directory");
}

struct Directory {
  uint64_t entries = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
};

// Reads the second end record of a large zip.
Result<Directory> wide_directory(const io::LimitedFile& file, const FileRange& part, std::string_view locator) {
  TRY_ASSIGN(const std::string end, part_bytes(file, part, number_at<uint64_t>(locator, 8), kWideEnd));
  if (!end.starts_with(kWideEndSignature)) return bad_zip("the end of its directory is not where it should be");
  return Directory{number_at<uint64_t>(end, 32), number_at<uint64_t>(end, 48), number_at<uint64_t>(end, 40)};
}

// Searches for the end record, allowing for a comment of at most that many bytes. Returns nothing if it is not found.
Result<std::optional<Directory>> directory_before(const io::LimitedFile& file, const FileRange& part,
                                                  uint64_t comment) {
  const uint64_t size = std::min<uint64_t>(part.size, kLocator + kEnd + comment);
  TRY_ASSIGN(const std::string tail, part_bytes(file, part, part.size - size, size));
  constexpr size_t none = std::string::npos;
  for (size_t at = tail.rfind(kEndSignature); at != none; at = at == 0 ? none : tail.rfind(kEndSignature, at - 1)) {
    const std::string_view end = std::string_view(tail).substr(at);
    if (end.size() < kEnd || number_at<uint16_t>(end, 20) != end.size() - kEnd) continue;
    const std::string_view before = std::string_view(tail).substr(0, at);
    const std::string_view locator = before.substr(before.size() - std::min(before.size(), kLocator));
    if (locator.size() == kLocator && locator.starts_with(kLocatorSignature)) {
      TRY_ASSIGN(const Directory wide, wide_directory(file, part, locator));
      return std::optional(wide);
    }
    return std::optional(
        Directory{number_at<uint16_t>(end, 10), number_at<uint32_t>(end, 16), number_at<uint32_t>(end, 12)});
  }
  return std::optional<Directory>();
}

// Searches without a comment first: torch writes none, and a step may have millions of such zips.
Result<Directory> find_directory(const io::LimitedFile& file, const FileRange& part) {
  constexpr uint64_t kLongestComment = 65535;
  for (const uint64_t comment : {uint64_t{0}, kLongestComment}) {
    TRY_ASSIGN(const auto found, directory_before(file, part, comment));
    if (found) return *found;
  }
  return no_end(file, part);
}

// The 64-bit numbers that did not fit into an entry, in the order of 4.5.3.
class WideNumbers {
 public:
  explicit WideNumbers(std::string_view extra) {
    while (extra.size() >= 4) {
      const auto kind = number_at<uint16_t>(extra, 0);
      const std::string_view content = extra.substr(4, number_at<uint16_t>(extra, 2));
      if (kind == 1) numbers_ = content;
      extra.remove_prefix(4 + content.size());
    }
  }

  // Returns nothing if the number is missing.
  std::optional<uint64_t> wide(uint32_t narrow) {
    if (narrow != UINT32_MAX) return narrow;
    if (numbers_.size() < sizeof(uint64_t)) return std::nullopt;
    const auto number = number_at<uint64_t>(numbers_, 0);
    numbers_.remove_prefix(sizeof(uint64_t));
    return number;
  }

 private:
  std::string_view numbers_;
};

}  // namespace

Result<ZipArchive> ZipArchive::open(const io::LimitedFile& file, const FileRange& part) {
  TRY_ASSIGN(const Directory directory, find_directory(file, part));
  if (directory.size > kMostDirectory || directory.entries > kMostDirectory / kOfEntry) {
    return bad_zip("it claims to have " + std::to_string(directory.entries) + " entries, and " +
                   std::to_string(directory.size) + " bytes that tell of them");
  }
  ZipArchive archive(file, part);
  TRY_ASSIGN(archive.directory_, part_bytes(file, part, directory.offset, directory.size));
  TRY(archive.add_entries(directory.entries));
  return archive;
}

Result<> ZipArchive::add_entries(uint64_t count) {
  size_t at = 0;
  for (uint64_t entry = 0; entry < count; ++entry) TRY_SET(at, add_entry(at));
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::stable_sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) { return name(a) < name(b); });
  return success();
}

// Adds the entry that begins at `at` in the directory. Returns where the next one begins.
Result<size_t> ZipArchive::add_entry(size_t at) {
  const std::string_view rest = std::string_view(directory_).substr(at);
  if (rest.size() < kOfEntry || !rest.starts_with(kEntrySignature)) return bad_zip("its directory is damaged");
  const size_t name = number_at<uint16_t>(rest, 28), extra = number_at<uint16_t>(rest, 30);
  const size_t size = kOfEntry + name + extra + number_at<uint16_t>(rest, 32);
  if (size > rest.size()) return bad_zip("its directory is cut short");
  const bool encrypted = (number_at<uint16_t>(rest, 8) & 1) != 0, stored = number_at<uint16_t>(rest, 10) == 0;
  WideNumbers numbers(rest.substr(kOfEntry + name, extra));
  const auto whole = numbers.wide(number_at<uint32_t>(rest, 24)), packed = numbers.wide(number_at<uint32_t>(rest, 20)),
             header = numbers.wide(number_at<uint32_t>(rest, 42));
  if (!whole || !packed || !header) return bad_zip("an entry does not tell its size and place");
  entries_.push_back({static_cast<uint32_t>(at + kOfEntry), static_cast<uint16_t>(name),
                      stored && !encrypted && *whole == *packed, *header, *whole});
  return at + size;
}

std::string_view ZipArchive::name(uint64_t entry) const {
  return std::string_view(directory_).substr(entries_[entry].name, entries_[entry].name_size);
}

std::optional<uint64_t> ZipArchive::find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [this](uint32_t entry, std::string_view wanted) { return this->name(entry) < wanted; });
  if (found == by_name_.end() || this->name(*found) != name) return std::nullopt;
  return *found;
}

Result<FileRange> ZipArchive::range(uint64_t entry) const {
  const Entry& of = entries_[entry];
  const std::string known(name(entry));
  if (!of.plain) return Error(ENOTSUP, known + " is compressed or encrypted");
  if (of.size == 0) return FileRange();
  TRY_ASSIGN(const std::string header, part_bytes(file_, part_, of.header, kOfHeader));
  if (!header.starts_with(kHeaderSignature)) return bad_zip(known + " is not where the directory says");
  const uint64_t offset = of.header + kOfHeader + number_at<uint16_t>(header, 26) + number_at<uint16_t>(header, 28);
  if (offset > part_.size || of.size > part_.size - offset) return bad_zip(known + " reaches past its end");
  return FileRange{part_.offset + offset, of.size};
}

Result<std::string> ZipArchive::read(uint64_t entry, uint64_t most) const {
  TRY_ASSIGN(const FileRange range, this->range(entry));
  const std::string known(name(entry));
  if (range.size > most) {
    return bad_zip(known + " has " + std::to_string(range.size) + " bytes: at most " + std::to_string(most) +
                   " are read");
  }
  std::string content(range.size, '\0');
  TRY_ASSIGN(const size_t got, file_.read_full(std::as_writable_bytes(std::span(content)), range.offset));
  if (got < content.size()) return bad_zip(known + " is cut short");
  return content;
}

}  // namespace ckptfs::meta::formats
