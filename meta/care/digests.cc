#include "meta/care/digests.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "io/aligned_buffer.h"
#include "io/fault.h"
#include "io/lease.h"
#include "io/log.h"
#include "io/retry.h"

namespace ckptfs::meta {
namespace {

using Clock = std::chrono::steady_clock;

// Reads a blob's chunks with O_DIRECT. So pages that users have in memory stay there, and the disk is read itself.
class ChunkReader {
 public:
  static Result<ChunkReader> open(const Blobs& blobs, BlobNumber blob) {
    ChunkReader reader;
    TRY_ASSIGN(reader.cached_, blobs.open(blob, O_RDONLY));
    TRY_ASSIGN(reader.direct_, blobs.open(blob, O_RDONLY | O_DIRECT));
    TRY_ASSIGN(reader.stat_, io::stat_fd(reader.cached_.get()));
    return reader;
  }

  uint64_t size() const { return static_cast<uint64_t>(stat_.st_size); }
  const struct stat& stat() const { return stat_; }
  int fd() const { return cached_.get(); }

  // Reads a chunk from memory if all of it is there. The result is valid until the next call.
  Result<std::span<const std::byte>> read(uint64_t chunk) {
    TRY_ASSIGN(const auto room, room_for(chunk));
    const auto offset = static_cast<off_t>(chunk * kDigestChunk);
    const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    if (pages_in_memory(offset, room.size()) != (room.size() + page - 1) / page) return read_from_disk(chunk);
    TRY_ASSIGN(const size_t got, io::read_full(cached_.get(), room, offset));
    return got == room.size() ? Result<std::span<const std::byte>>(room) : became_shorter();
  }

  // Drops the blob from memory. Does any of it stay there, since somebody maps it?
  bool any_in_memory_after_drop() const {
    ::posix_fadvise(cached_.get(), 0, 0, POSIX_FADV_DONTNEED);
    for (uint64_t chunk = 0; chunk < digest_chunks(size()); ++chunk) {
      const auto offset = chunk * kDigestChunk;
      const auto pages = pages_in_memory(static_cast<off_t>(offset), std::min(kDigestChunk, size() - offset));
      if (!pages || *pages > 0) return true;
    }
    return false;
  }

  Result<std::span<const std::byte>> read_from_disk(uint64_t chunk) {
    TRY_ASSIGN(const auto room, room_for(chunk));
    const auto offset = static_cast<off_t>(chunk * kDigestChunk);
    size_t got = 0;
    while (got < room.size()) {
      const ssize_t n = io::retry_interrupted([&] {
        return ::pread(direct_.get(), room.data() + got, kDigestChunk - got, offset + static_cast<off_t>(got));
      });
      if (n < 0) return last_error("reading the blob");
      if (n == 0) return became_shorter();
      got += static_cast<size_t>(n);
    }
    return {room};
  }

 private:
  static Error became_shorter() { return Error(EIO, "the blob became shorter while it was read"); }

  // Asks by mincore, since a read with RWF_NOWAIT would make the kernel read ahead. None: mincore does not tell.
  std::optional<uint64_t> pages_in_memory(off_t offset, size_t length) const {
    std::array<unsigned char, kDigestChunk / 4096> pages{};
    void* const map = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, cached_.get(), offset);
    if (map == MAP_FAILED) return std::nullopt;
    const bool told = ::mincore(map, length, pages.data()) == 0;
    ::munmap(map, length);
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const auto end = pages.begin() + static_cast<std::ptrdiff_t>((length + page - 1) / page);
    if (!told) return std::nullopt;
    return static_cast<uint64_t>(
        std::count_if(pages.begin(), end, [](unsigned char state) { return (state & 1) != 0; }));
  }

  Result<std::span<std::byte>> room_for(uint64_t chunk) {
    const auto room = buffer_.get(kDigestChunk);
    if (room.empty()) return Error(ENOMEM);
    return room.first(std::min(kDigestChunk, size() - chunk * kDigestChunk));
  }

  io::Fd cached_;
  io::Fd direct_;
  struct stat stat_ {};
  io::AlignedBuffer buffer_;
};

Error digests_missing(BlobNumber blob) {
  return Error(EIO, "blob " + Blobs::name(blob) + ": digests of it are missing in the index");
}

io::Digest root_of(const std::vector<io::Digest>& digests) { return io::digest_of(std::as_bytes(std::span(digests))); }

// Marks the file as not written to from now on. False: no digests are taken of this file.
Result<bool> begin_taking(Store& store, InodeNumber file) {
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(InodeRecord record, store.index().inode(file));
  if (!record.is_regular() || record.nlink == 0 || store.tree().is_damaged(file)) return false;
  if (!record.is_live_file() || (record.flags & kDigested) != 0) return true;
  record.flags |= kDigested;
  change.batch.put(file, record);
  TRY(store.tree().commit(std::move(change)));
  return true;
}

Result<bool> is_written(const Store& store, InodeNumber file, const InodeRecord& record, const ChunkReader& reader) {
  if (!record.is_live_file()) return false;
  if (store.open_files().open_for_writing(file)) return true;
  return io::has_writer(reader.fd());
}

// May the file have changed since `read`? It may have been written to, and even sealed since, or it is gone.
bool has_changed(const Index& index, InodeNumber file, const InodeRecord& read) {
  const auto record = index.inode(file);
  if (!record || record.value().blob != read.blob) return true;
  return read.is_live_file() && (record.value().flags & kDigested) == 0;
}

// False: the file changed while it was read.
Result<bool> record_digests(Store& store, InodeNumber file, const InodeRecord& read, const ChunkReader& reader,
                            const std::vector<io::Digest>& digests) {
  Tree::Change change = store.tree().begin();
  if (has_changed(store.index(), file, read)) return false;
  TRY_ASSIGN(BlobRecord blob, store.index().blob(read.blob));
  const uint64_t groups = digest_groups(reader.size());
  change.batch.erase_digests(read.blob, groups, digest_groups(blob.digest.length));
  blob.digest = {DigestState::taken, reader.size(), reader.stat().st_mtim, root_of(digests)};
  change.batch.put_blob(read.blob, blob);
  for (uint64_t group = 0; group < groups; ++group) {
    const uint64_t first = group * kDigestGroup;
    const uint64_t count = std::min(kDigestGroup, digests.size() - first);
    change.batch.put_digests(read.blob, group, std::span(digests).subspan(first, count));
  }
  TRY(store.tree().commit(std::move(change)));
  return true;
}

// Tells whether a blob's digests are valid now, and what they say.
Verdict standing(const InodeRecord& record, const BlobDigest& digest) {
  if (digest.state == DigestState::none) return Verdict::undigested;
  const bool changed = record.is_live_file() && ((record.flags & kDigested) == 0 || (record.flags & kRecovered) != 0);
  if (changed || digest.state == DigestState::changed) return Verdict::changed;
  return digest.state == DigestState::damaged ? Verdict::damaged : Verdict::ok;
}

// Reads a file once and compares it with its digests.
class Verification {
 public:
  Verification(Store& store, InodeNumber file, uint64_t from) : store_(store), file_(file), from_(from) {}

  Result<Verified> run(const Pause& pause) {
    TRY_ASSIGN(record_, store_.tree().inode(file_));
    if (!record_.is_regular()) return Error(EINVAL, store_.tree().path_of(file_) + ": it is no file");
    TRY_ASSIGN(const BlobRecord blob, store_.index().blob(record_.blob));
    digest_ = blob.digest;
    result_.verdict = standing(record_, digest_);
    result_.done = result_.verdict == Verdict::undigested || result_.verdict == Verdict::changed;
    if (result_.done) return std::move(result_);
    result_.verdict = Verdict::ok;
    TRY(compare(pause));
    TRY(conclude());
    return std::move(result_);
  }

 private:
  Result<> compare(const Pause& pause) {
    auto reader = ChunkReader::open(store_.blobs(), record_.blob);
    if (!reader && reader.error().errno_value() != ENOENT) return reader.error();
    if (!reader || reader.value().size() != digest_.length) {
      note_damage({0, digest_.length});
      result_.done = true;
      return success();
    }
    const uint64_t chunks = digest_chunks(digest_.length);
    std::vector<io::Digest> group;
    for (uint64_t chunk = from_; chunk < chunks; ++chunk) {
      const uint64_t at = chunk % kDigestGroup;
      if (group.empty() || at == 0) {
        TRY_ASSIGN(group, store_.index().digests(record_.blob, chunk / kDigestGroup));
      }
      if (at >= group.size()) return digests_missing(record_.blob);
      const auto began = Clock::now();
      const auto data = reader.value().read_from_disk(chunk);
      const auto took = Clock::now() - began;
      const uint64_t offset = chunk * kDigestChunk;
      const uint64_t length = std::min(kDigestChunk, digest_.length - offset);
      if (!data && data.error().errno_value() != EIO) return data.error();
      if (!data || io::digest_of(data.value()) != group[at]) note_damage({offset, length});
      result_.bytes += length;
      result_.next = chunk + 1;
      if (!pause(took) && result_.next < chunks) return success();
    }
    result_.done = true;
    return success();
  }

  void note_damage(io::Range range) {
    result_.verdict = Verdict::damaged;
    auto& damaged = result_.damaged;
    if (!damaged.empty() && damaged.back().offset + damaged.back().length == range.offset) {
      damaged.back().length += range.length;
    } else {
      damaged.push_back(range);
    }
  }

  // The result counts only if nobody could write to the file meanwhile.
  Result<> conclude() {
    {
      Tree::Change change = store_.tree().begin();
      const auto record = store_.index().inode(file_);
      if (!record || record.value().blob != record_.blob) return written_meanwhile();
      TRY_ASSIGN(BlobRecord blob, store_.index().blob(record_.blob));
      const Verdict now = standing(record.value(), blob.digest);
      if (now == Verdict::changed || now == Verdict::undigested) return written_meanwhile();
      const bool whole = from_ == 0 && result_.done;
      const bool damaged = result_.verdict == Verdict::damaged;
      const auto wanted = damaged ? DigestState::damaged : whole ? DigestState::taken : blob.digest.state;
      if (wanted != blob.digest.state) {
        blob.digest.state = wanted;
        change.batch.put_blob(record_.blob, blob);
        TRY(store_.tree().commit(std::move(change)));
      }
    }
    if (result_.verdict != Verdict::damaged) return success();
    TRY_ASSIGN(const auto paths, paths_of_blob(store_, record_.blob));
    for (const std::string& path : paths) {
      for (const io::Range& range : result_.damaged) {
        log::error("{}: damaged: {} bytes from {} on are not what was written (blob {})", path, range.length,
                   range.offset, Blobs::name(record_.blob));
      }
    }
    return success();
  }

  Result<> written_meanwhile() {
    result_.verdict = Verdict::changed;
    result_.damaged.clear();
    result_.done = true;
    return success();
  }

  Store& store_;
  const InodeNumber file_;
  const uint64_t from_;
  InodeRecord record_;
  BlobDigest digest_;
  Verified result_;
};

}  // namespace

Result<Taking> take_digests(Store& store, InodeNumber file, const Pause& pause) {
  TRY(store.index().refuse_when_full());  // without room for its digests the file would be read again and again
  TRY_ASSIGN(const bool may, begin_taking(store, file));
  if (!may) return Taking::postponed;
  TRY_ASSIGN(const InodeRecord record, store.tree().inode(file));
  TRY_ASSIGN(ChunkReader reader, ChunkReader::open(store.blobs(), record.blob));
  TRY_ASSIGN(const bool written, is_written(store, file, record, reader));
  if (written) return Taking::postponed;
  if (reader.size() > store.space().total) return Taking::too_long;
  if (!store.tree().write_back().check(record.blob)) return Taking::postponed;  // status names it
  TRY(store.tree().sync_file(file, reader.fd()));
  TRY(store.tree().write_back().make_sure(record.blob));
  TRY(io::fault_point("digests.read"));
  std::vector<io::Digest> digests;
  digests.reserve(digest_chunks(reader.size()));
  for (uint64_t chunk = 0; chunk < digest_chunks(reader.size()); ++chunk) {
    const auto began = Clock::now();
    const auto data = reader.read(chunk);
    const auto took = Clock::now() - began;
    if (!data && has_changed(store.index(), file, record)) return Taking::postponed;  // it was truncated
    if (!data) return data.error();
    digests.push_back(io::digest_of(data.value()));
    if (!pause(took)) return Taking::stopped;
  }
  TRY_ASSIGN(const bool recorded, record_digests(store, file, record, reader, digests));
  return recorded ? Taking::taken : Taking::postponed;
}

bool are_current(const InodeRecord& file, const BlobDigest& digest) { return standing(file, digest) == Verdict::ok; }

Result<std::vector<io::Digest>> digests_of(const Index& index, BlobNumber blob, const BlobDigest& digest) {
  std::vector<io::Digest> all;
  all.reserve(digest_chunks(digest.length));
  for (uint64_t group = 0; group < digest_groups(digest.length); ++group) {
    TRY_ASSIGN(const auto some, index.digests(blob, group));
    all.insert(all.end(), some.begin(), some.end());
  }
  if (all.size() != digest_chunks(digest.length)) return digests_missing(blob);
  return all;
}

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::damaged:
      return "damaged";
    case Verdict::changed:
      return "changed";
    case Verdict::undigested:
      return "unhashed";
  }
  return "";
}

Result<Verified> verify(Store& store, InodeNumber file, uint64_t from, const Pause& pause) {
  return Verification(store, file, from).run(pause);
}

Result<bool> accept_from_disk(Store& store, InodeNumber file) {
  Tree& tree = store.tree();
  TRY_ASSIGN(const InodeRecord record, tree.inode(file));
  if (!record.is_regular() || tree.write_back().check(record.blob)) return false;
  TRY_ASSIGN(ChunkReader reader, ChunkReader::open(store.blobs(), record.blob));
  if (reader.any_in_memory_after_drop()) {
    return Error(EBUSY, tree.path_of(file) +
                            ": somebody has it mapped, and sees something else than the disk holds; "
                            "close it there first");
  }
  for (uint64_t chunk = 0; chunk < digest_chunks(reader.size()); ++chunk) TRY(reader.read_from_disk(chunk));
  TRY(tree.write_back().trust(record.blob));
  TRY(tree.sync());
  log::warn("{}: what the disk holds of it counts as its content from now on, as somebody asked", tree.path_of(file));
  return true;
}

Result<Verdict> known_verdict(const Store& store, InodeNumber file) {
  TRY_ASSIGN(const InodeRecord record, store.tree().inode(file));
  TRY_ASSIGN(const BlobRecord blob, store.index().blob(record.blob));
  return standing(record, blob.digest);
}

Result<std::vector<std::string>> paths_of_blob(const Store& store, BlobNumber blob) {
  std::vector<InodeNumber> inodes;
  TRY(store.index().for_each_inode([&](InodeNumber number, const InodeRecord& record) -> Result<> {
    if (record.is_regular() && record.blob == blob) inodes.push_back(number);
    return success();
  }));
  std::vector<std::string> paths;
  for (const InodeNumber inode : inodes) paths.push_back(store.tree().path_of(inode));
  return paths;
}

}  // namespace ckptfs::meta
