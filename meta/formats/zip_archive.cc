#include "meta/formats/zip_archive.h"

#include <zip.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "io/fd.h"

namespace ckptfs::meta::formats {
namespace {

// Of a directory's bytes; libzip holds some four times as much while a zip is open.
constexpr uint64_t kMostDirectory = uint64_t{16} << 20;
constexpr uint64_t kMostEntries = uint64_t{1} << 20;

Error bad_zip(const std::string& what) { return Error(EBADMSG, "not a zip that can be read: " + what); }

std::string text_of(zip_error_t* error) {
  std::string text = zip_error_strerror(error);
  zip_error_fini(error);
  return text;
}

// Without the record that ends a zip it may be the beginning of one, whose writer came no further.
Result<> refuse_beginning(int file, const FileRange& part) {
  constexpr std::string_view first_signature("PK\3\4", 4);
  std::array<char, first_signature.size()> first{};
  TRY_ASSIGN(
      const size_t got,
      io::read_full(file, std::as_writable_bytes(std::span(first)).first(std::min<uint64_t>(part.size, first.size())),
                    static_cast<off_t>(part.offset)));
  if (std::string_view(first.data(), got) != first_signature.substr(0, got)) return success();
  return Error(ENODATA, "it was not written to its end");
}

// libzip makes room for as many entries as a directory claims to have, some 30 bytes each, before it reads any. More
// than 65,535 are claimed by a zip64 end record only, which a locator before the end record leads to. Format: PKWARE's
// APPNOTE.TXT, 4.3.14 to 4.3.16.
Result<> check_claims(int file, const FileRange& part) {
  constexpr size_t end_record = 22, longest_comment = 65535, locator = 20;
  std::string tail(std::min<uint64_t>(part.size, locator + end_record + longest_comment), '\0');
  const uint64_t begin = part.offset + part.size - tail.size();
  TRY_ASSIGN(const size_t got, io::read_full(file, std::as_writable_bytes(std::span(tail)), static_cast<off_t>(begin)));
  tail.resize(got);
  constexpr std::string_view end_signature("PK\5\6", 4), locator_signature("PK\6\7", 4);
  const size_t end = tail.find(end_signature);
  if (end == std::string::npos || tail.size() - end < end_record) TRY(refuse_beginning(file, part));
  for (size_t at = tail.find(end_signature); at != std::string::npos; at = tail.find(end_signature, at + 1)) {
    if (at < locator || std::string_view(tail).substr(at - locator, 4) != locator_signature) continue;
    uint64_t where = 0;
    std::memcpy(&where, tail.data() + at - locator + 8, sizeof(where));
    std::array<uint64_t, 2> entries{};  // on this disk, and in all
    constexpr uint64_t counts = 24;
    if (part.size < counts + sizeof(entries) || where > part.size - counts - sizeof(entries)) continue;
    TRY(io::read_full(file, std::as_writable_bytes(std::span(entries)),
                      static_cast<off_t>(part.offset + where + counts)));
    const uint64_t most = std::max(entries[0], entries[1]);
    if (most > kMostEntries) return bad_zip("it claims to have " + std::to_string(most) + " entries");
  }
  return success();
}

}  // namespace

// What libzip reads from. It tells where the last read was: the one thing that libzip does not.
class ZipArchive::Source {
 public:
  Source(int file, const FileRange& part) : file_(file), part_(part) { zip_error_init(&error_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() { zip_error_fini(&error_); }

  int file() const { return file_; }
  // Of the zip, in the file.
  uint64_t end() const { return part_.offset + part_.size; }
  // Where in the file.
  uint64_t last_read() const { return part_.offset + last_read_; }
  // From here on any number of bytes may be read.
  void opened() { budget_ = UINT64_MAX; }

  static zip_int64_t serve(void* self, void* data, zip_uint64_t length, zip_source_cmd_t command) {
    return static_cast<Source*>(self)->serve(data, length, command);
  }

 private:
  zip_int64_t serve(void* data, zip_uint64_t length, zip_source_cmd_t command) {
    switch (command) {
      case ZIP_SOURCE_OPEN:
        position_ = 0;
        return 0;
      case ZIP_SOURCE_CLOSE:
      case ZIP_SOURCE_FREE:
        return 0;
      case ZIP_SOURCE_READ:
        return read({static_cast<std::byte*>(data), length});
      case ZIP_SOURCE_SEEK:
        return seek(data, length);
      case ZIP_SOURCE_TELL:
        return static_cast<zip_int64_t>(position_);
      case ZIP_SOURCE_STAT:
        return stat(static_cast<zip_stat_t*>(data));
      case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&error_, data, length);
      case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT,
                                              ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL,
                                              ZIP_SOURCE_SUPPORTS, -1);
      default:
        return failed(ZIP_ER_OPNOTSUPP, 0);
    }
  }

  zip_int64_t failed(int zip, int errno_value) {
    zip_error_set(&error_, zip, errno_value);
    return -1;
  }

  zip_int64_t read(std::span<std::byte> buffer) {
    if (buffer.size() > budget_) return failed(ZIP_ER_READ, EFBIG);
    buffer = buffer.first(std::min<uint64_t>(buffer.size(), part_.size - std::min(position_, part_.size)));
    const auto got = io::read_full(file_, buffer, static_cast<off_t>(part_.offset + position_));
    if (!got) return failed(ZIP_ER_READ, got.error().errno_value());
    if (budget_ != UINT64_MAX) budget_ -= got.value();
    last_read_ = position_;
    position_ += got.value();
    return static_cast<zip_int64_t>(got.value());
  }

  zip_int64_t seek(void* data, zip_uint64_t length) {
    const zip_int64_t to = zip_source_seek_compute_offset(position_, part_.size, data, length, &error_);
    if (to < 0) return -1;
    position_ = static_cast<uint64_t>(to);
    return 0;
  }

  zip_int64_t stat(zip_stat_t* stat) const {
    zip_stat_init(stat);
    stat->size = part_.size;
    stat->valid |= ZIP_STAT_SIZE;
    return sizeof(*stat);
  }

  const int file_;
  const FileRange part_;
  zip_error_t error_{};
  uint64_t position_ = 0;
  uint64_t last_read_ = 0;
  uint64_t budget_ = kMostDirectory;
};

ZipArchive::ZipArchive(std::unique_ptr<Source> source, ::zip* zip) : source_(std::move(source)), zip_(zip) {}

ZipArchive::ZipArchive(ZipArchive&& other) noexcept
    : source_(std::move(other.source_)), zip_(std::exchange(other.zip_, nullptr)) {}

ZipArchive& ZipArchive::operator=(ZipArchive&& other) noexcept {
  std::swap(source_, other.source_);
  std::swap(zip_, other.zip_);
  return *this;
}

ZipArchive::~ZipArchive() {
  if (zip_ != nullptr) zip_discard(zip_);
}

Result<ZipArchive> ZipArchive::open(int file, const FileRange& part) {
  TRY(check_claims(file, part));
  auto source = std::make_unique<Source>(file, part);
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* const lower = zip_source_function_create(&Source::serve, source.get(), &error);
  if (lower == nullptr) return bad_zip(text_of(&error));
  ::zip* const zip = zip_open_from_source(lower, ZIP_RDONLY, &error);
  if (zip == nullptr) {
    zip_source_free(lower);
    return bad_zip(text_of(&error));
  }
  source->opened();
  return ZipArchive(std::move(source), zip);
}

uint64_t ZipArchive::entries() const { return static_cast<uint64_t>(zip_get_num_entries(zip_, 0)); }

std::string ZipArchive::name(uint64_t entry) const {
  const char* const name = zip_get_name(zip_, entry, ZIP_FL_ENC_RAW);
  return name == nullptr ? std::string() : name;
}

std::optional<uint64_t> ZipArchive::find(const std::string& name) const {
  const zip_int64_t entry = zip_name_locate(zip_, name.c_str(), ZIP_FL_ENC_RAW);
  if (entry < 0) return std::nullopt;
  return static_cast<uint64_t>(entry);
}

namespace {

struct CloseEntry {
  void operator()(zip_file_t* entry) const { zip_fclose(entry); }
};
using Entry = std::unique_ptr<zip_file_t, CloseEntry>;

// As it lies there: torch may write sums that are wrong (set_crc32_options), and checks none.
Result<Entry> open_entry(::zip* zip, uint64_t entry) {
  Entry opened(zip_fopen_index(zip, entry, ZIP_FL_COMPRESSED));
  if (!opened) return bad_zip(zip_strerror(zip));
  return opened;
}

Result<zip_stat_t> stat_entry(::zip* zip, uint64_t entry) {
  zip_stat_t st;
  if (zip_stat_index(zip, entry, 0, &st) != 0) return bad_zip(zip_strerror(zip));
  constexpr zip_uint64_t needed = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
  if ((st.valid & needed) != needed) return bad_zip("an entry without a size");
  return st;
}

}  // namespace

Result<std::string> ZipArchive::read(uint64_t entry, uint64_t most) {
  TRY_ASSIGN(const FileRange range, this->range(entry));
  if (range.size > most) return bad_zip(name(entry) + " has " + std::to_string(range.size) + " bytes");
  std::string content(range.size, '\0');
  TRY_ASSIGN(const size_t got, io::read_full(source_->file(), std::as_writable_bytes(std::span(content)),
                                             static_cast<off_t>(range.offset)));
  if (got < content.size()) return bad_zip(name(entry) + " is cut short");
  return content;
}

Result<FileRange> ZipArchive::range(uint64_t entry) {
  TRY_ASSIGN(const zip_stat_t st, stat_entry(zip_, entry));
  const bool plain = st.comp_method == ZIP_CM_STORE && st.size == st.comp_size &&
                     ((st.valid & ZIP_STAT_ENCRYPTION_METHOD) == 0 || st.encryption_method == ZIP_EM_NONE);
  if (!plain) return Error(ENOTSUP, name(entry) + " is compressed or encrypted");
  if (st.size == 0) return FileRange();
  TRY_ASSIGN(const Entry opened, open_entry(zip_, entry));
  char first = 0;
  if (zip_fread(opened.get(), &first, 1) != 1) return bad_zip(name(entry) + ": " + zip_file_strerror(opened.get()));
  const uint64_t offset = source_->last_read();
  if (st.size > source_->end() - offset) return bad_zip(name(entry) + " reaches past its end");
  return FileRange{offset, st.size};
}

}  // namespace ckptfs::meta::formats
