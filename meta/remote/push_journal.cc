#include "meta/remote/push_journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "io/fd.h"
#include "io/mutex.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kCheckBytes = 16;                              // of a record's digest
constexpr size_t kRecordHead = sizeof(uint32_t) + kCheckBytes;  // before what is digested
constexpr size_t kBodyHead = 2 * sizeof(uint32_t);              // before the push's name
constexpr size_t kChunkRecord = sizeof(io::Digest) + 2 * sizeof(uint32_t);
constexpr uint32_t kMostRecord = uint32_t{64} << 20;

struct JournalledPack {
  PushName push;
  uint32_t pack = 0;
  uint64_t chunks_at = 0;  // in the file
};

// 16 bytes for each chunk.
struct KnownChunk {
  uint64_t key = 0;  // the first bytes of its digest
  uint32_t pack = 0;
  uint32_t index = 0;
};

uint64_t key_of(const io::Digest& digest) {
  uint64_t key = 0;
  std::memcpy(&key, digest.data(), sizeof(key));
  return key;
}

void append_number(std::string& text, uint32_t number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}
uint32_t number_at(std::string_view text, size_t at) {
  uint32_t number = 0;
  std::memcpy(&number, text.data() + at, sizeof(number));
  return number;
}

std::string check_of(std::string_view body) {
  const io::Digest digest = io::digest_of(std::as_bytes(std::span(body)));
  return std::string(reinterpret_cast<const char*>(digest.data()), kCheckBytes);
}

std::string record_of(const PushName& push, uint32_t pack, std::span<const JournalledChunk> chunks) {
  const std::string name = push.text();
  std::string body;
  body.reserve(kBodyHead + name.size() + chunks.size() * kChunkRecord);
  append_number(body, static_cast<uint32_t>(name.size()));
  append_number(body, pack);
  body += name;
  for (const JournalledChunk& chunk : chunks) {
    body.append(reinterpret_cast<const char*>(chunk.digest.data()), chunk.digest.size());
    append_number(body, chunk.offset);
    append_number(body, chunk.length);
  }
  std::string record;
  append_number(record, static_cast<uint32_t>(body.size()));
  return record + check_of(body) + body;
}

Result<std::string> read_piece(const io::Fd& file, uint64_t offset, size_t length) {
  std::string piece(length, '\0');
  TRY_ASSIGN(const size_t got,
             io::read_full(file.get(), std::as_writable_bytes(std::span(piece)), static_cast<off_t>(offset)));
  piece.resize(got);
  return piece;
}

}  // namespace

struct PushJournal::Internals {
  std::string path;
  std::string head;
  io::Fd file;
  mutable io::Mutex mutex;
  uint64_t end GUARDED_BY(mutex) = 0;  // of the last whole record
  std::vector<JournalledPack> packs GUARDED_BY(mutex);
  mutable std::vector<KnownChunk> chunks GUARDED_BY(mutex);
  mutable bool sorted GUARDED_BY(mutex) = true;

  Result<> read_all() REQUIRES(mutex);
  // False: there is no whole record at `end`.
  Result<bool> read_record() REQUIRES(mutex);
  void note(std::string_view body, const PushName& push) REQUIRES(mutex);
  Result<> start_anew() REQUIRES(mutex);
};

// `body` lies at `end`, after its head. The push's name has been checked.
void PushJournal::Internals::note(std::string_view body, const PushName& push) {
  const size_t name = number_at(body, 0), first = kBodyHead + name;
  const auto pack = static_cast<uint32_t>(packs.size());
  packs.push_back({push, number_at(body, sizeof(uint32_t)), end + kRecordHead + first});
  for (uint32_t index = 0; first + index * kChunkRecord < body.size(); ++index) {
    io::Digest digest;
    std::memcpy(digest.data(), body.data() + first + index * kChunkRecord, digest.size());
    chunks.push_back({key_of(digest), pack, index});
  }
  sorted = false;
  end += kRecordHead + body.size();
}

Result<bool> PushJournal::Internals::read_record() {
  TRY_ASSIGN(const std::string record_head, read_piece(file, end, kRecordHead));
  if (record_head.size() < kRecordHead) return false;
  const uint32_t length = number_at(record_head, 0);
  if (length < kBodyHead || length > kMostRecord) return false;
  TRY_ASSIGN(const std::string body, read_piece(file, end + kRecordHead, length));
  if (body.size() < length || check_of(body) != record_head.substr(sizeof(uint32_t))) return false;
  const size_t name = number_at(body, 0);
  if (name > length - kBodyHead || (length - kBodyHead - name) % kChunkRecord != 0) return false;
  const auto push = parse_push(std::string_view(body).substr(kBodyHead, name));
  if (push) note(body, *push);
  return push.has_value();
}

Result<> PushJournal::Internals::start_anew() {
  packs.clear();
  chunks.clear();
  sorted = true;
  if (::ftruncate(file.get(), 0) != 0) return last_error(path);
  TRY(io::write_full(file.get(), std::as_bytes(std::span(head)), 0));
  end = head.size();
  return io::fdatasync_fd(file.get());
}

Result<> PushJournal::Internals::read_all() {
  TRY_ASSIGN(const std::string found, read_piece(file, 0, head.size()));
  if (found != head) return start_anew();
  end = head.size();
  for (;;) {
    TRY_ASSIGN(const bool whole, read_record());
    if (!whole) break;
  }
  return ::ftruncate(file.get(), static_cast<off_t>(end)) == 0 ? success() : Result<>(last_error(path));
}

PushJournal::PushJournal(std::unique_ptr<Internals> internals) : internals_(std::move(internals)) {}
PushJournal::PushJournal(PushJournal&&) noexcept = default;
PushJournal::~PushJournal() = default;

Result<PushJournal> PushJournal::open(const std::string& file, const std::string& remote) {
  auto internals = std::make_unique<Internals>();
  internals->path = file;
  internals->head = "ckptfs push journal 1 " + remote + "\n";
  TRY_ASSIGN(internals->file, io::open_at(AT_FDCWD, file, O_RDWR | O_CREAT));
  {
    const io::MutexLock lock(internals->mutex);
    TRY(internals->read_all());
  }
  return PushJournal(std::move(internals));
}

Result<> PushJournal::add(const PushName& push, uint32_t pack, std::span<const JournalledChunk> chunks) {
  const std::string record = record_of(push, pack, chunks);
  {
    const io::MutexLock lock(internals_->mutex);
    const auto at = static_cast<off_t>(internals_->end);  // a torn record is overwritten
    TRY(io::write_full(internals_->file.get(), std::as_bytes(std::span(record)), at));
    internals_->note(std::string_view(record).substr(kRecordHead), push);
  }
  return io::fdatasync_fd(internals_->file.get());
}

Result<std::optional<ChunkPlace>> PushJournal::find(const io::Digest& digest) const {
  const io::MutexLock lock(internals_->mutex);
  auto& chunks = internals_->chunks;
  if (!std::exchange(internals_->sorted, true)) std::ranges::sort(chunks, {}, &KnownChunk::key);
  for (auto known = std::ranges::lower_bound(chunks, key_of(digest), {}, &KnownChunk::key);
       known != chunks.end() && known->key == key_of(digest); ++known) {
    const JournalledPack& pack = internals_->packs[known->pack];
    const uint64_t at = pack.chunks_at + uint64_t{known->index} * kChunkRecord;
    TRY_ASSIGN(const std::string record, read_piece(internals_->file, at, kChunkRecord));
    if (record.size() < kChunkRecord || std::memcmp(record.data(), digest.data(), digest.size()) != 0) continue;
    return std::optional(ChunkPlace{pack.push, pack.pack, number_at(record, digest.size()),
                                    number_at(record, digest.size() + sizeof(uint32_t))});
  }
  return std::optional<ChunkPlace>();
}

std::vector<PushName> PushJournal::pushes() const {
  const io::MutexLock lock(internals_->mutex);
  std::set<PushName> pushes;
  for (const JournalledPack& pack : internals_->packs) pushes.insert(pack.push);
  return {pushes.begin(), pushes.end()};
}

Result<> PushJournal::clear() {
  const io::MutexLock lock(internals_->mutex);
  return internals_->start_anew();
}

}  // namespace ckptfs::meta::remote
