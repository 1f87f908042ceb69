// Writes a committed step, or what one slot holds of it, as files below a folder. Used by export, into a new folder,
// and by fetch, into one that an interrupted fetch may have left (remote_fetch.h).
//
//   1. make() makes all files and folders. A file that is there with the right size stays. Until finish() the folders
//      belong to the caller, and nobody else gets in, so that nobody can put a symbolic link in the way.
//   2. reuse() finds the chunks that need not be fetched, in what is there and in other folders.
//   3. fetch() fetches the others.
//   4. finish() gives everything its mode, owner and time, and makes it durable.
//
// Times are kept, owners where the caller may set them, and modes, but no file gets the setuid or setgid bit.
//
// Thread safety: one call at a time; each works on several threads of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/digest.h"
#include "io/fd.h"
#include "io/result.h"
#include "meta/remote/remote_step.h"
#include "meta/remote/union.h"

namespace ckptfs::meta::remote {

// 16 chunks of a file, or what the file has from `offset` on.
struct Piece {
  static constexpr size_t kChunks = 16;
  static constexpr uint64_t kBytes = kChunks * kChunkBytes;
  const UnionEntry* file = nullptr;
  uint64_t offset = 0;
  uint64_t size = 0;
};
// Chunks of a piece. Bit i stands for chunk i.
using ChunkSet = uint16_t;
static_assert(Piece::kChunks <= 16);

std::vector<Piece> pieces_of(const UnionEntry& file, uint64_t size);
// Which of the `asked` chunks hold, in an open file, what their digests say?
Result<ChunkSet> right_chunks(const RemoteStep& step, const Piece& piece, int file, ChunkSet asked);
ChunkSet all_chunks(const Piece& piece);

class StepWriter {
 public:
  // `folder`: a descriptor of the folder that becomes the step. All that is given must outlive the writer.
  StepWriter(const RemoteStep& step, const Union& files, int folder, const ReadSettings& settings);

  enum class Room { allocated, as_written };
  // `room`: are all blocks of the files allocated now? ENOSPC: there are not enough of them.
  Result<> make(Room room);
  // `lenders`: descriptors of folders that may hold the same chunks at the same places of the same files. Such chunks
  // are copied by copy_file_range(2), which shares their blocks where the file system can. What of that fails, and what
  // differs from its digest, is fetched.
  Result<> reuse(std::span<const int> lenders);
  // Bytes that are neither there nor were fetched.
  uint64_t missing() const { return total_ - found_ - shared_ - fetched_; }
  Result<> fetch();
  // `with_own_folder`: false: the step's own folder stays the caller's alone, until it is published (own_folder()).
  Result<> finish(bool with_own_folder = true);

  uint64_t found() const { return found_; }  // bytes that were there already
  uint64_t shared() const { return shared_; }
  uint64_t fetched() const { return fetched_; }
  // What the step's own folder is to be.
  struct OwnFolder {
    uid_t uid = 0;
    gid_t gid = 0;
    mode_t mode = 0;
    timespec mtime{};
  };
  Result<OwnFolder> own_folder() const;
  // As PartHeader::saved.
  Result<io::Digest> saved() const;

 private:
  struct Job {
    Piece piece;
    bool was_there = false;  // the file was, with the right size
    ChunkSet missing = 0;
  };

  Result<> check_stop() const;
  Result<io::Fd> open(const UnionEntry& one, int flags) const;
  Result<> make_one(const UnionEntry& one, Room room);
  Result<> make_folder(const UnionEntry& one) const;
  Result<> make_link(const UnionEntry& one, const std::string& target) const;
  Result<> make_file(const UnionEntry& one, uint64_t size, Room room);
  Result<bool> keep_file(const UnionEntry& one, uint64_t size) const;
  Result<> reuse_in(Job& job, std::span<const int> lenders);
  Result<> share(Job& job, int target, int lender);
  Result<> fetch_missing(Job& job);
  Result<> finish_file(const UnionEntry& one) const;
  Result<> finish_folder(const UnionEntry& one) const;
  Result<> finish_link(const UnionEntry& one, const Entry& entry) const;
  void report(const Job& job) const;

  const RemoteStep& step_;
  const Union& files_;
  const int folder_;
  const ReadSettings& settings_;
  std::vector<Job> jobs_;
  uint64_t total_ = 0;
  std::atomic<uint64_t> found_{0}, shared_{0}, fetched_{0};
};

}  // namespace ckptfs::meta::remote
