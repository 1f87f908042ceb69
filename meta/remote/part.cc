#include "meta/remote/part.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>

#include "io/json.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

constexpr uint64_t kMostEntryBytes = uint64_t{256} << 20;  // of all entries
constexpr size_t kPartRange = size_t{16} << 20;            // of one request
constexpr size_t kPartPiece = size_t{1} << 20;             // of a copy
constexpr size_t kHeaderGuess = size_t{64} << 10;
constexpr uint64_t kChunksAtOnce = 16'384;

Error no_header() { return Error(EBADMSG, "its header is cut short, or too long"); }

Result<io::Fd> nameless_file(const std::string& folder) { return io::open_at(AT_FDCWD, folder, O_TMPFILE | O_RDWR); }

Result<io::Digest> digest_file(int file) {
  TRY_ASSIGN(const struct stat facts, io::stat_fd(file));
  std::vector<std::byte> piece(std::min<uint64_t>(kPartPiece, static_cast<uint64_t>(facts.st_size) + 1));
  io::Hasher hasher;
  for (uint64_t at = 0;;) {
    TRY_ASSIGN(const size_t got, io::read_full(file, piece, static_cast<off_t>(at)));
    hasher.add(std::span(piece).first(got));
    at += got;
    if (got < piece.size()) return hasher.finish();
  }
}

// Appends the first `size` bytes of a file to another, which has `at` bytes.
Result<> append_file(int from, uint64_t size, int to, uint64_t at) {
  std::vector<std::byte> piece(std::min<uint64_t>(kPartPiece, size));
  for (uint64_t done = 0; done < size; done += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), size - done));
    TRY_ASSIGN(const size_t got, io::read_full(from, piece, static_cast<off_t>(done)));
    if (got < piece.size()) return Error(EIO, "a nameless file has fewer bytes than were written to it");
    TRY(io::write_full(to, piece, static_cast<off_t>(at + done)));
  }
  return success();
}

// The lines of a file's range, a piece in memory at a time.
class LinesOfFile {
 public:
  LinesOfFile(int file, uint64_t begin, uint64_t end) : file_(file), at_(begin), end_(end) {}

  // EBADMSG: there is no whole line.
  Result<std::string_view> next() {
    for (;;) {
      const std::string_view rest = std::string_view(buffer_).substr(begin_);
      const size_t end = rest.find('\n');
      if (end != std::string_view::npos) {
        begin_ += end + 1;
        return rest.substr(0, end);
      }
      if (rest.size() > kLongestEntry) return Error(EBADMSG, "an entry is too long");
      TRY(fill());
    }
  }
  // Where the next line begins.
  uint64_t position() const { return at_ - (buffer_.size() - begin_); }

 private:
  Result<> fill() {
    buffer_.erase(0, std::exchange(begin_, 0));
    const size_t kept = buffer_.size(), wanted = std::min<uint64_t>(kPartPiece, end_ - at_);
    if (wanted == 0) return Error(EBADMSG, "its entries are cut short");
    buffer_.resize(kept + wanted);
    TRY_ASSIGN(const size_t got,
               io::read_full(file_, std::as_writable_bytes(std::span(buffer_)).subspan(kept), static_cast<off_t>(at_)));
    if (got < wanted) return Error(EBADMSG, "its entries are cut short");
    at_ += got;
    return success();
  }

  const int file_;
  uint64_t at_;
  const uint64_t end_;
  std::string buffer_;
  size_t begin_ = 0;
};

}  // namespace

Result<Part> Part::open(io::Fd file) {
  TRY_ASSIGN(const io::Digest digest, digest_file(file.get()));
  return read(std::move(file), digest);
}

Result<Part> Part::read(io::Fd file, const io::Digest& digest) {
  TRY_ASSIGN(const struct stat facts, io::stat_fd(file.get()));
  Part part;
  part.file_ = std::move(file);
  part.size_ = static_cast<uint64_t>(facts.st_size);
  part.digest_ = digest;
  TRY(part.read_header());
  TRY(part.check_content());
  return part;
}

Result<> Part::read_header() {
  for (size_t length = kHeaderGuess;; length = kMostHeaderBytes) {
    std::string text(std::min<uint64_t>(length, size_), '\0');
    TRY_ASSIGN(const size_t got, io::read_full(file_.get(), std::as_writable_bytes(std::span(text)), 0));
    TRY_ASSIGN(auto found, parse_begin(std::string_view(text).substr(0, got)));
    if (!found && (got == size_ || length == kMostHeaderBytes)) return no_header();
    if (!found) continue;
    header_ = std::move(found->header);
    return read_entries(found->end);
  }
}

Result<> Part::read_entries(uint64_t begin) {
  const uint64_t chunk_bytes = header_.chunks * sizeof(io::Digest);
  if (size_ < begin || size_ - begin < chunk_bytes) return Error(EBADMSG, "it is cut short");
  chunks_at_ = size_ - chunk_bytes;
  if (chunks_at_ - begin > kMostEntryBytes) return Error(EBADMSG, "its entries are longer than any step's");
  LinesOfFile lines(file_.get(), begin, chunks_at_);
  uint64_t files = 0, chunks = 0, bytes = 0;
  for (uint64_t number = 0; number < header_.entries; ++number) {
    TRY_ASSIGN(const std::string_view line, lines.next());
    auto parsed = parse_entry(line);
    if (!parsed) return with_name(fmt::format("entry {}", number), parsed.error());
    Entry entry = std::move(parsed).value();
    TRY(check_entry(entry));
    entry.first_chunk = chunks;
    files += entry.kind == Entry::Kind::file ? 1 : 0;
    chunks += entry.chunks();
    bytes += entry.size;
    entries_.push_back(std::move(entry));
  }
  if (entries_.empty()) return Error(EBADMSG, "it has no entries");
  const bool agree = files == header_.files && chunks == header_.chunks && bytes == header_.bytes;
  if (lines.position() != chunks_at_ || !agree) {
    return Error(EBADMSG, "its entries, its chunks and its header do not agree");
  }
  return success();
}

// Of an entry and those before it.
Result<> Part::check_entry(const Entry& entry) const {
  if (entries_.empty()) {
    if (entry.path.empty() && entry.kind == Entry::Kind::folder) return success();
    return Error(EBADMSG, "its first entry is not the step's own folder");
  }
  if (entry.path <= entries_.back().path)
    return Error(EBADMSG, io::printable(entry.path) + ": it comes twice, or too late");
  const size_t slash = entry.path.rfind('/');
  const auto parent =
      find(slash == std::string::npos ? std::string_view() : std::string_view(entry.path).substr(0, slash));
  if (parent && entries_[*parent].kind == Entry::Kind::folder) return success();
  return Error(EBADMSG, io::printable(entry.path) + ": it lies in no folder of the step");
}

Result<> Part::check_content() const {
  ContentDigest content;
  for (const Entry& entry : entries_) {
    content.begin(entry);
    for (uint64_t at = 0; at < entry.chunks(); at += kChunksAtOnce) {
      TRY_ASSIGN(const auto some, digests(entry.first_chunk + at, std::min(kChunksAtOnce, entry.chunks() - at)));
      for (const io::Digest& digest : some) content.add_chunk(digest);
    }
  }
  if (content.finish() != header_.content) return Error(EBADMSG, "its content has another digest than its header says");
  return success();
}

Result<std::vector<io::Digest>> Part::digests(uint64_t first, uint64_t count) const {
  std::vector<io::Digest> found(count);
  const auto bytes = std::as_writable_bytes(std::span(found));
  TRY_ASSIGN(const size_t got,
             io::read_full(file_.get(), bytes, static_cast<off_t>(chunks_at_ + first * sizeof(io::Digest))));
  if (got < bytes.size()) return Error(EIO, "the part's file has become shorter");
  return found;
}

Result<std::vector<Chunk>> Part::chunks(const Entry& file, uint64_t first, uint64_t count) const {
  if (first > file.chunks() || count > file.chunks() - first) return Error(EINVAL, "the file has fewer chunks");
  TRY_ASSIGN(const auto found, digests(file.first_chunk + first, count));
  std::vector<Chunk> chunks(count);
  for (size_t at = 0; at < count; ++at) {
    const uint64_t left = file.size - (first + at) * kChunkBytes;
    chunks[at] = {found[at], static_cast<uint32_t>(std::min(kChunkBytes, left))};
  }
  return chunks;
}

std::optional<size_t> Part::find(std::string_view path) const {
  const auto found =
      std::ranges::lower_bound(entries_, path, {}, [](const Entry& one) { return std::string_view(one.path); });
  if (found == entries_.end() || found->path != path) return std::nullopt;
  return static_cast<size_t>(found - entries_.begin());
}

io::ObjectContent Part::content() const {
  return {size_, [file = file_.get()](uint64_t offset, std::span<std::byte> buffer) -> Result<> {
            TRY_ASSIGN(const size_t got, io::read_full(file, buffer, static_cast<off_t>(offset)));
            if (got < buffer.size()) return Error(EIO, "the part's file has become shorter");
            return success();
          }};
}

Result<PartWriter> PartWriter::make(const std::string& folder) {
  PartWriter writer(folder);
  TRY_ASSIGN(writer.entries_, nameless_file(folder));
  TRY_ASSIGN(writer.chunks_, nameless_file(folder));
  return writer;
}

Result<> PartWriter::add(const Entry& entry, std::span<const io::Digest> chunks) {
  TRY(check_alone(entry));
  const bool in_order = entry_count_ == 0 ? entry.path.empty() : entry.path > last_path_;
  if (!in_order) return Error(EINVAL, io::printable(entry.path) + ": the entries are not in the order of their paths");
  if (entry_count_ == kMostEntries) return Error(EFBIG, "the step has more than a million files");
  if (chunks.size() != entry.chunks())
    return Error(EINVAL, io::printable(entry.path) + ": it has another number of chunks");
  const std::string line = text_of(entry);
  TRY(io::write_full(entries_.get(), std::as_bytes(std::span(line)), static_cast<off_t>(entries_bytes_)));
  content_.add(entry, chunks);
  saved_.add(entry, chunks);
  TRY(io::write_full(chunks_.get(), std::as_bytes(chunks), static_cast<off_t>(chunk_count_ * sizeof(io::Digest))));
  last_path_ = entry.path;
  entries_bytes_ += line.size();
  ++entry_count_;
  file_count_ += entry.kind == Entry::Kind::file ? 1 : 0;
  chunk_count_ += chunks.size();
  bytes_ += entry.size;
  return success();
}

Result<Part> PartWriter::finish(PartHeader header) {
  header.entries = entry_count_;
  header.files = file_count_;
  header.chunks = chunk_count_;
  header.bytes = bytes_;
  header.content = content_.finish();
  header.saved = saved_.finish();
  const std::string text = text_of(header);
  TRY_ASSIGN(io::Fd file, nameless_file(folder_));
  TRY(io::write_full(file.get(), std::as_bytes(std::span(text)), 0));
  TRY(append_file(entries_.get(), entries_bytes_, file.get(), text.size()));
  TRY(append_file(chunks_.get(), chunk_count_ * sizeof(io::Digest), file.get(), text.size() + entries_bytes_));
  return Part::open(std::move(file));
}

namespace {

// Fetches an object into a file, and digests it.
Result<io::Digest> fetch_into(io::ObjectStore& store, const std::string& key, int file,
                              const io::RequestLimits& limits) {
  const auto began = std::chrono::steady_clock::now();
  io::Hasher hasher;
  std::unique_ptr<std::byte[]> range;
  size_t length = 0;
  for (uint64_t at = 0;;) {
    const size_t wanted = at == 0 ? kHeaderGuess : kPartRange;  // most parts are small
    if (wanted != length) range = std::make_unique_for_overwrite<std::byte[]>(wanted);
    length = wanted;
    const std::span buffer(range.get(), length);
    TRY_ASSIGN(const size_t got, store.get(key, at, buffer, limits.renewed(began)));
    hasher.add(buffer.first(got));
    TRY(io::write_full(file, buffer.first(got), static_cast<off_t>(at)));
    at += got;
    if (got < length) return hasher.finish();
    if (at > kMostPartBytes) return Error(EBADMSG, store.url() + "/" + key + ": it is longer than any part");
  }
}

Result<> check_own(const PartHeader& header, const PushName& push) {
  if (header.push == push) return success();
  return Error(EBADMSG, "it is the part of another push: " + io::printable(header.push.text()));
}

}  // namespace

Result<Part> fetch_part(io::ObjectStore& store, const PushName& push, const std::optional<io::Digest>& wanted,
                        const std::string& folder, const io::RequestLimits& limits) {
  const std::string key = part_key(push), object = store.url() + "/" + key;
  TRY_ASSIGN(io::Fd file, nameless_file(folder));
  TRY_ASSIGN(const io::Digest digest, fetch_into(store, key, file.get(), limits));
  if (wanted && digest != *wanted) return Error(EBADMSG, object + ": it has another digest than the commit says");
  TRY_ASSIGN(Part part, with_name(object, Part::read(std::move(file), digest)));
  TRY(with_name(object, check_own(part.header(), push)));
  return part;
}

bool is_damage(const Error& error) {
  constexpr std::array kDamage{ENOENT, EBADMSG, EPROTO, EFBIG, EINVAL};
  return std::ranges::find(kDamage, error.errno_value()) != kDamage.end();
}

Result<PartHeader> fetch_part_header(io::ObjectStore& store, const PushName& push, const io::RequestLimits& limits) {
  const std::string key = part_key(push), object = store.url() + "/" + key;
  for (size_t length = kHeaderGuess;; length = kMostHeaderBytes) {
    std::string text(length, '\0');
    TRY_ASSIGN(const size_t got, store.get(key, 0, std::as_writable_bytes(std::span(text)), limits));
    if (got <= kMostEndedBytes) return Error(ESTALE, object + ": this push was ended");
    TRY_ASSIGN(auto found, with_name(object, parse_begin(std::string_view(text).substr(0, got))));
    if (!found && (got < length || length == kMostHeaderBytes)) return with_name(object, no_header());
    if (!found) continue;
    TRY(with_name(object, check_own(found->header, push)));
    return std::move(found->header);
  }
}

}  // namespace ckptfs::meta::remote
