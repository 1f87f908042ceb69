#include "meta/remote/push_journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "io/fd.h"
#include "io/json.h"
#include "io/mutex.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

constexpr uint64_t kVersionOfJournal = 2;
constexpr uint64_t kMostJournal = uint64_t{1} << 30;
constexpr io::JsonBounds kLineBounds{.bytes = 1 << 16, .values = 16, .text = 1 << 15, .depth = 2};

struct FileBefore {
  PushName push;
  io::Digest digest{};
};

}  // namespace

struct PushJournal::Internals {
  std::string path;
  std::string remote;
  io::Fd file;
  mutable io::Mutex mutex;
  uint64_t end GUARDED_BY(mutex) = 0;  // of the last whole line
  std::optional<PushName> push GUARDED_BY(mutex);
  io::Digest content GUARDED_BY(mutex){};
  std::map<std::string, io::Digest> files GUARDED_BY(mutex);
  std::map<std::string, JournalledUpload> uploads GUARDED_BY(mutex);
  std::map<std::string, FileBefore> before GUARDED_BY(mutex);

  Result<> read_all() REQUIRES(mutex);
  Result<> note(const json& line) REQUIRES(mutex);
  Result<> note_head(const json& line) REQUIRES(mutex);
  Result<> note_upload(const json& line) REQUIRES(mutex);
  Result<> write(const std::string& text, uint64_t at) const;
  Result<> add(const std::vector<json>& lines);
  void forget() REQUIRES(mutex);
};

void PushJournal::Internals::forget() {
  push.reset();
  files.clear();
  uploads.clear();
  before.clear();
}

Result<> PushJournal::Internals::note_head(const json& line) {
  TRY_ASSIGN(const uint64_t version, number_field(line, "journal"));
  TRY_ASSIGN(const std::string of, text_field(line, "remote"));
  if (version != kVersionOfJournal || of != remote) return Error(EBADMSG);
  TRY_ASSIGN(PushName name, push_field(line, "push"));
  TRY_ASSIGN(content, digest_field(line, "content"));
  push = std::move(name);
  return success();
}

Result<> PushJournal::Internals::note_upload(const json& line) {
  TRY_ASSIGN(const std::string name, text_field(line, "upload"));
  if (line.contains("id")) {
    TRY_ASSIGN(std::string id, text_field(line, "id"));
    TRY_ASSIGN(const uint64_t bytes, number_field(line, "bytes"));
    uploads[name] = {std::move(id), bytes, {}};
    return success();
  }
  TRY_ASSIGN(const uint64_t piece, number_field(line, "piece", UINT32_MAX));
  TRY_ASSIGN(uploads[name].pieces[static_cast<uint32_t>(piece)], text_field(line, "tag"));
  return success();
}

Result<> PushJournal::Internals::note(const json& line) {
  if (!push) return note_head(line);
  if (line.contains("upload")) return note_upload(line);
  TRY_ASSIGN(const std::string name, text_field(line, "file"));
  TRY_ASSIGN(const io::Digest digest, digest_field(line, "digest"));
  if (!line.contains("before")) {
    files[name] = digest;
    return success();
  }
  TRY_ASSIGN(PushName of, push_field(line, "before"));
  before[name] = {std::move(of), digest};
  return success();
}

// What is of another remote, or of an older ckptfs, is no journal of this one.
Result<> PushJournal::Internals::read_all() {
  TRY_ASSIGN(const struct stat facts, io::stat_fd(file.get()));
  std::string text(std::min<uint64_t>(static_cast<uint64_t>(facts.st_size), kMostJournal), '\0');
  TRY_ASSIGN(const size_t got, io::read_full(file.get(), std::as_writable_bytes(std::span(text)), 0));
  text.resize(got);
  for (;;) {
    const size_t next = text.find('\n', end);
    if (next == std::string::npos) break;
    const auto line = parse_object(std::string_view(text).substr(end, next - end), kLineBounds);
    if (!line || !note(line.value())) break;
    end = next + 1;
  }
  if (end == 0) forget();
  return ::ftruncate(file.get(), static_cast<off_t>(end)) == 0 ? success() : Result<>(last_error(path));
}

Result<> PushJournal::Internals::write(const std::string& text, uint64_t at) const {
  TRY(io::write_full(file.get(), std::as_bytes(std::span(text)), static_cast<off_t>(at)));
  return io::fdatasync_fd(file.get());
}

// A torn line is overwritten.
Result<> PushJournal::Internals::add(const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) text += line_of(line);
  uint64_t at = 0;
  {
    const io::MutexLock lock(mutex);
    for (const json& line : lines) TRY(note(line));
    at = std::exchange(end, end + text.size());
  }
  return write(text, at);
}

PushJournal::PushJournal(std::unique_ptr<Internals> internals) : internals_(std::move(internals)) {}
PushJournal::PushJournal(PushJournal&&) noexcept = default;
PushJournal::~PushJournal() = default;

Result<PushJournal> PushJournal::open(const std::string& file, const std::string& remote) {
  auto internals = std::make_unique<Internals>();
  internals->path = file;
  internals->remote = remote;
  TRY_ASSIGN(internals->file, io::open_at(AT_FDCWD, file, O_RDWR | O_CREAT));
  {
    const io::MutexLock lock(internals->mutex);
    TRY(internals->read_all());
  }
  return PushJournal(std::move(internals));
}

std::optional<PushName> PushJournal::push() const {
  const io::MutexLock lock(internals_->mutex);
  return internals_->push;
}

io::Digest PushJournal::content() const {
  const io::MutexLock lock(internals_->mutex);
  return internals_->content;
}

// Of several pushes that came to no end the last one counts for a file.
Result<> PushJournal::begin(const PushName& push, const io::Digest& content) {
  std::map<std::string, FileBefore> kept;
  {
    const io::MutexLock lock(internals_->mutex);
    kept = std::move(internals_->before);
    for (const auto& [path, digest] : internals_->files) kept[path] = {*internals_->push, digest};
  }
  TRY(clear());
  std::vector<json> lines;
  lines.push_back(json{{"journal", kVersionOfJournal},
                       {"remote", internals_->remote},
                       {"push", push.text()},
                       {"content", io::hex_of(content)}});
  for (const auto& [path, one] : kept) {
    lines.push_back(json{{"before", one.push.text()}, {"file", path}, {"digest", io::hex_of(one.digest)}});
  }
  return internals_->add(lines);
}

Result<> PushJournal::clear() {
  const io::MutexLock lock(internals_->mutex);
  internals_->forget();
  internals_->end = 0;
  if (::ftruncate(internals_->file.get(), 0) != 0) return last_error(internals_->path);
  return io::fdatasync_fd(internals_->file.get());
}

Result<> PushJournal::add_file(const std::string& path, const io::Digest& digest) {
  return internals_->add({json{{"file", path}, {"digest", io::hex_of(digest)}}});
}

Result<> PushJournal::add_upload(const std::string& path, const std::string& id, uint64_t piece_bytes) {
  return internals_->add({json{{"upload", path}, {"id", id}, {"bytes", piece_bytes}}});
}

Result<> PushJournal::add_piece(const std::string& path, uint32_t number, const std::string& tag) {
  return internals_->add({json{{"upload", path}, {"piece", number}, {"tag", tag}}});
}

bool PushJournal::has_file(const std::string& path) const {
  const io::MutexLock lock(internals_->mutex);
  return internals_->files.contains(path);
}

JournalledUpload PushJournal::upload(const std::string& path) const {
  const io::MutexLock lock(internals_->mutex);
  const auto found = internals_->uploads.find(path);
  return found == internals_->uploads.end() ? JournalledUpload() : found->second;
}

std::optional<PushName> PushJournal::file_before(const std::string& path, const io::Digest& digest) const {
  const io::MutexLock lock(internals_->mutex);
  const auto found = internals_->before.find(path);
  if (found == internals_->before.end() || found->second.digest != digest) return std::nullopt;
  return found->second.push;
}

}  // namespace ckptfs::meta::remote
