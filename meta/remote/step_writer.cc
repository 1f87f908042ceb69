#include "meta/remote/step_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "io/parallel.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

constexpr mode_t kFileBits = 0777, kFolderBits = 03777;

const char* path_of(const UnionEntry& one) { return one.path.empty() ? "." : one.path.c_str(); }

Error last_error_at(const UnionEntry& one) { return last_error(io::printable(one.path)); }

template <class T>
Result<T> naming(const UnionEntry& one, Result<T> done) {
  return with_name(io::printable(one.path), std::move(done));
}

// Who may not set an owner keeps what he has made.
bool is_owned(int outcome) { return outcome == 0 || errno == EPERM || errno == EINVAL; }

Result<> finish_open(int fd, const UnionEntry& one, const Entry& entry, mode_t bits) {
  const std::array<timespec, 2> times{entry.mtime, entry.mtime};
  const bool owned = is_owned(::fchown(fd, entry.uid, entry.gid));
  if (!owned || ::fchmod(fd, entry.mode & bits) != 0 || ::futimens(fd, times.data()) != 0) return last_error_at(one);
  return naming(one, io::fsync_fd(fd));
}

// A range of a file, and the chunks of the piece that it covers.
struct CoveredRange {
  uint64_t offset = 0;
  uint64_t size = 0;
  ChunkSet chunks = 0;
};

// Chunks that follow one another are one range.
std::vector<CoveredRange> ranges_of(const Piece& piece, ChunkSet chunks) {
  std::vector<CoveredRange> ranges;
  for (size_t i = 0; i < Piece::kChunks; ++i) {
    if ((chunks >> i & 1) == 0) continue;
    const uint64_t begin = i * kChunkBytes, size = std::min(kChunkBytes, piece.size - begin);
    const bool follows = i > 0 && (chunks >> (i - 1) & 1) != 0;
    if (!follows) ranges.push_back({piece.offset + begin, 0, 0});
    ranges.back().size += size;
    ranges.back().chunks |= static_cast<ChunkSet>(1U << i);
  }
  return ranges;
}

uint64_t bytes_of(const Piece& piece, ChunkSet chunks) {
  uint64_t bytes = 0;
  for (const CoveredRange& range : ranges_of(piece, chunks)) bytes += range.size;
  return bytes;
}

ChunkSet without(ChunkSet chunks, ChunkSet others) { return static_cast<ChunkSet>(chunks & ~others); }

// Chunks of which something was written. The others are holes, which need not be read.
ChunkSet written_chunks(int file, const Piece& piece) {
  ChunkSet written = 0;
  for (uint64_t begin = 0; begin < piece.size; begin += kChunkBytes) {
    const auto offset = static_cast<off_t>(piece.offset + begin);
    const off_t data = ::lseek(file, offset, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // nothing from here on
    const bool is_hole = data >= offset + static_cast<off_t>(kChunkBytes);
    if (!is_hole) written |= static_cast<ChunkSet>(1U << (begin / kChunkBytes));
  }
  return written;
}

bool copy_range_of(int from, int to, const CoveredRange& range) {
  auto from_offset = static_cast<off64_t>(range.offset), to_offset = from_offset;
  for (uint64_t left = range.size; left > 0;) {
    const ssize_t copied = ::copy_file_range(from, &from_offset, to, &to_offset, left, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied <= 0) return false;
    left -= static_cast<uint64_t>(copied);
  }
  return true;
}

// What cannot be opened there lends nothing.
io::Fd open_lent(int folder, const UnionEntry& one) {
  io::Fd file(::openat(folder, path_of(one), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return {};
  return file;
}

}  // namespace

std::vector<Piece> pieces_of(const UnionEntry& file, uint64_t size) {
  std::vector<Piece> pieces;
  for (uint64_t offset = 0; offset < size; offset += Piece::kBytes) {
    pieces.push_back({&file, offset, std::min(Piece::kBytes, size - offset)});
  }
  return pieces;
}

ChunkSet all_chunks(const Piece& piece) {
  const uint64_t count = (piece.size + kChunkBytes - 1) / kChunkBytes;
  return static_cast<ChunkSet>((uint32_t{1} << count) - 1);
}

Result<ChunkSet> right_chunks(const RemoteStep& step, const Piece& piece, int file, ChunkSet asked) {
  if (asked == 0) return ChunkSet{0};
  const uint64_t first = piece.offset / kChunkBytes, count = (piece.size + kChunkBytes - 1) / kChunkBytes;
  TRY_ASSIGN(const auto chunks, step.part(piece.file->slot).chunks(step.entry(*piece.file), first, count));
  const auto room = std::make_unique_for_overwrite<std::byte[]>(kChunkBytes);
  ChunkSet right = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const uint64_t begin = i * kChunkBytes, size = std::min(kChunkBytes, piece.size - begin);
    if ((asked >> i & 1) == 0) continue;
    const std::span bytes(room.get(), size);
    TRY_ASSIGN(const size_t got, io::read_full(file, bytes, static_cast<off_t>(piece.offset + begin)));
    if (got == size && io::digest_of(bytes) == chunks[i].digest) right |= static_cast<ChunkSet>(1U << i);
  }
  return right;
}

StepWriter::StepWriter(const RemoteStep& step, const Union& files, int folder, const ReadSettings& settings)
    : step_(step), files_(files), folder_(folder), settings_(settings) {}

Result<> StepWriter::check_stop() const {
  const bool stopped = settings_.stop != nullptr && settings_.stop->load(std::memory_order_relaxed);
  return stopped ? Result<>(Error(ECANCELED, "it was stopped")) : success();
}

Result<io::Fd> StepWriter::open(const UnionEntry& one, int flags) const {
  auto opened = io::open_at(folder_, path_of(one), flags | O_NOFOLLOW);
  if (!opened) return with_name(io::printable(one.path), Error(opened.error().errno_value()));
  return opened;
}

// A folder comes before what is in it.
Result<> StepWriter::make(Room room) {
  for (const UnionEntry& one : files_.entries) {
    TRY(check_stop());
    TRY(make_one(one, room));
  }
  return success();
}

Result<> StepWriter::make_one(const UnionEntry& one, Room room) {
  const Entry& entry = step_.entry(one);
  if (entry.kind == Entry::Kind::folder) return make_folder(one);
  if (entry.kind == Entry::Kind::link) return make_link(one, entry.target);
  return make_file(one, entry.size, room);
}

Result<> StepWriter::make_folder(const UnionEntry& one) const {
  if (::mkdirat(folder_, path_of(one), 0700) == 0) return success();
  if (errno != EEXIST) return last_error_at(one);
  TRY_ASSIGN(const io::Fd folder, open(one, O_RDONLY | O_DIRECTORY));
  const bool owned = is_owned(::fchown(folder.get(), ::geteuid(), ::getegid()));
  return owned && ::fchmod(folder.get(), 0700) == 0 ? success() : Result<>(last_error_at(one));
}

Result<> StepWriter::make_link(const UnionEntry& one, const std::string& target) const {
  const auto make = [&] { return ::symlinkat(target.c_str(), folder_, one.path.c_str()) == 0; };
  if (make()) return success();
  const bool replaced = errno == EEXIST && ::unlinkat(folder_, one.path.c_str(), 0) == 0 && make();
  return replaced ? success() : Result<>(last_error_at(one));
}

// Is the file there, with the right size? If it is there otherwise, it is removed.
Result<bool> StepWriter::keep_file(const UnionEntry& one, uint64_t size) const {
  const char* const path = one.path.c_str();
  struct stat found {};
  if (::fstatat(folder_, path, &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? Result<bool>(false) : last_error_at(one);
  }
  const bool stays = S_ISREG(found.st_mode) && found.st_nlink == 1 && static_cast<uint64_t>(found.st_size) == size;
  // Nobody else gets into the folder, so it still is that file.
  if (stays ? ::fchmodat(folder_, path, 0600, 0) != 0 : ::unlinkat(folder_, path, 0) != 0) return last_error_at(one);
  return stays;
}

Result<> StepWriter::make_file(const UnionEntry& one, uint64_t size, Room room) {
  TRY_ASSIGN(const bool was_there, keep_file(one, size));
  if (!was_there) {
    TRY_ASSIGN(const io::Fd file, open(one, O_RDWR | O_CREAT | O_EXCL));
    if (room == Room::allocated) TRY(naming(one, io::allocate(file.get(), size)));
    if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) return last_error_at(one);
  }
  for (const Piece& piece : pieces_of(one, size)) jobs_.push_back({piece, was_there, all_chunks(piece)});
  total_ += size;
  return success();
}

Result<> StepWriter::reuse(std::span<const int> lenders) {
  return io::for_each_parallel(jobs_.size(), settings_.parallel,
                               [this, lenders](size_t i) { return reuse_in(jobs_[i], lenders); });
}

Result<> StepWriter::reuse_in(Job& job, std::span<const int> lenders) {
  if (!job.was_there && lenders.empty()) return success();
  TRY(check_stop());
  const uint64_t before = bytes_of(job.piece, job.missing);
  TRY_ASSIGN(const io::Fd file, open(*job.piece.file, O_RDWR));
  if (job.was_there) {
    const ChunkSet written = written_chunks(file.get(), job.piece);
    TRY_ASSIGN(const ChunkSet right, naming(*job.piece.file, right_chunks(step_, job.piece, file.get(), written)));
    job.missing = without(job.missing, right);
    found_ += bytes_of(job.piece, right);
  }
  for (const int lender : lenders) {
    if (job.missing != 0) TRY(share(job, file.get(), lender));
  }
  if (bytes_of(job.piece, job.missing) < before) report(job);
  return success();
}

// The copy is compared, too: somebody may be writing to the source.
Result<> StepWriter::share(Job& job, int target, int lender) {
  const io::Fd source = open_lent(lender, *job.piece.file);
  if (!source) return success();
  const auto equal = right_chunks(step_, job.piece, source.get(), job.missing);
  if (!equal) return success();  // what cannot be read there is fetched
  ChunkSet copied = 0;
  for (const CoveredRange& range : ranges_of(job.piece, equal.value())) {
    if (copy_range_of(source.get(), target, range)) copied |= range.chunks;
  }
  TRY_ASSIGN(const ChunkSet right, naming(*job.piece.file, right_chunks(step_, job.piece, target, copied)));
  job.missing = without(job.missing, right);
  shared_ += bytes_of(job.piece, right);
  return success();
}

Result<> StepWriter::fetch() {
  return io::for_each_parallel(jobs_.size(), settings_.parallel, [this](size_t i) { return fetch_missing(jobs_[i]); });
}

Result<> StepWriter::fetch_missing(Job& job) {
  if (job.missing == 0) return success();
  const UnionEntry& one = *job.piece.file;
  const auto room = std::make_unique_for_overwrite<std::byte[]>(job.piece.size);
  for (const CoveredRange& range : ranges_of(job.piece, job.missing)) {
    TRY(check_stop());
    const std::span bytes(room.get(), range.size);
    TRY(step_.read(one, range.offset, bytes, io::RequestLimits::within(settings_.time, settings_.stop)));
    TRY_ASSIGN(const io::Fd file, open(one, O_WRONLY));
    TRY(naming(one, io::write_full(file.get(), bytes, static_cast<off_t>(range.offset))));
    job.missing = without(job.missing, range.chunks);
    fetched_ += range.size;
    report(job);
  }
  return success();
}

void StepWriter::report(const Job& job) const {
  settings_.progress({total_, total_ - missing(), job.piece.file->path});
}

Result<> StepWriter::finish(bool with_own_folder) {
  const auto& entries = files_.entries;
  TRY(io::for_each_parallel(entries.size(), settings_.parallel, [&](size_t i) { return finish_file(entries[i]); }));
  // What is in a folder comes before it, since it changes the folder's time.
  for (auto one = entries.rbegin(); one != entries.rend(); ++one) {
    if (with_own_folder || !one->path.empty()) TRY(finish_folder(*one));
  }
  return with_own_folder ? success() : io::fsync_fd(folder_);
}

Result<> StepWriter::finish_file(const UnionEntry& one) const {
  const Entry& entry = step_.entry(one);
  if (entry.kind == Entry::Kind::folder) return success();
  TRY(check_stop());
  if (entry.kind == Entry::Kind::link) return finish_link(one, entry);
  TRY_ASSIGN(const io::Fd file, open(one, O_WRONLY));
  return finish_open(file.get(), one, entry, kFileBits);
}

Result<> StepWriter::finish_folder(const UnionEntry& one) const {
  const Entry& entry = step_.entry(one);
  if (entry.kind != Entry::Kind::folder) return success();
  TRY_ASSIGN(const io::Fd folder, open(one, O_RDONLY | O_DIRECTORY));
  return finish_open(folder.get(), one, entry, kFolderBits);
}

Result<> StepWriter::finish_link(const UnionEntry& one, const Entry& entry) const {
  const bool owned = is_owned(::fchownat(folder_, one.path.c_str(), entry.uid, entry.gid, AT_SYMLINK_NOFOLLOW));
  const std::array<timespec, 2> times{entry.mtime, entry.mtime};
  if (owned && ::utimensat(folder_, one.path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) == 0) return success();
  return last_error_at(one);
}

Result<StepWriter::OwnFolder> StepWriter::own_folder() const {
  const Entry& entry = step_.entry(files_.entries.front());
  TRY_ASSIGN(const struct stat found, io::stat_fd(folder_));
  const bool may_give = ::geteuid() == 0;
  return OwnFolder{may_give ? entry.uid : found.st_uid, may_give ? entry.gid : found.st_gid, entry.mode & kFolderBits,
                   entry.mtime};
}

Result<io::Digest> StepWriter::saved() const {
  SavedDigest saved;
  for (const UnionEntry& one : files_.entries) {
    Entry entry = step_.entry(one);
    entry.path = one.path;
    if (!saved.begin(entry)) continue;
    for (uint64_t first = 0; first < entry.chunks(); first += Piece::kChunks) {
      const uint64_t some = std::min<uint64_t>(Piece::kChunks, entry.chunks() - first);
      TRY_ASSIGN(const auto chunks, step_.part(one.slot).chunks(step_.entry(one), first, some));
      for (const Chunk& chunk : chunks) saved.add_chunk(chunk.digest);
    }
  }
  return saved.finish();
}

}  // namespace ckptfs::meta::remote
