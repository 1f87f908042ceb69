// How full the store is, and what it must keep free.
//
// After a save the next overwrite of each live swap file allocates new blocks, and in passthrough mode nobody would see
// it fail. So each live swap file has a *COW reserve*: what overwriting all that it holds would newly allocate. From
// the moment that something shares its blocks the reserve is all blocks that it has. After the last close for writing
// it is counted from the file's extents (Tree::finished_writing). Holes never count: else anybody could owe an exabyte
// without having a block, and everybody's saves would be refused. Users know the sum of all reserves as what is *owed*.
//   - A save needs room for all COW reserves as they are afterwards.
//   - An open for writing needs room for the reserves of all files that are then open for writing
//     (Tree::prepare_writing).
//   - An allocation, by fallocate and so by a save past the mount, needs room beside the reserves (Tree::check_room).
//   - While less than twice the reserves is free, swap files are written through the daemon, which sees each failure
//     (Tree::short_of_space).
//
// Before anything is refused, what XFS allocated ahead of writers is given back (Tree::reclaim_space). The index has
// room of its own: meta/index/ballast.h.
//
// Thread safety: all of it, without locks.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::io {
enum class OpenFilesToo : bool;  // io/preallocated.h
}

namespace ckptfs::meta {

struct SpaceReport {
  uint64_t total = 0;     // of the file system below, bytes
  uint64_t free = 0;      // without the reserve: what users may fill (the ballast is in use already)
  uint64_t raw_free = 0;  // as the file system says, or that of a sparse image, where it has less
  uint64_t reserve = 0;   // the larger of 256 MiB and 2 %
  uint64_t ballast = 0;
  uint64_t cow_reserve = 0;  // of all live swap files; `owed` in what users see
  uint64_t inodes = 0;
  uint64_t inodes_free = 0;  // without Blobs::kInodeReserve
};

// In what units an overwrite of the file allocates, to be set as its hint (io/clone.h). Of a file with holes it is a
// block: with a block in each of many large units it would owe many times what it holds.
uint32_t cow_unit(const struct stat& file);
// The COW reserve of a file from the moment that all of its blocks are shared.
uint64_t cow_reserve_of_clone(const struct stat& file);

class Space {
 public:
  // `image`: the file of the file system below, where blocks of it may be missing yet (a sparse image).
  explicit Space(int folder_fd, io::Fd image = {}) : folder_fd_(folder_fd), image_(std::move(image)) {}

  Result<SpaceReport> report() const;
  uint64_t cow_reserve() const { return cow_reserve_.load(std::memory_order_relaxed); }
  // One file's COW reserve changed.
  void adjust_cow_reserve(uint64_t from, uint64_t to) { cow_reserve_.fetch_add(to - from, std::memory_order_relaxed); }

  // Gives back what the file system allocated ahead of writers; nothing, where it is one that cannot.
  Result<> free_preallocated(io::OpenFilesToo open_files) const;
  // A file has been closed after writing; whether one was since this was asked last.
  void note_written() { written_.store(true, std::memory_order_relaxed); }
  bool take_written() { return written_.exchange(false, std::memory_order_relaxed); }

 private:
  Result<uint64_t> least_free(uint64_t free) const;

  const int folder_fd_;
  const io::Fd image_;
  std::atomic<uint64_t> cow_reserve_{0};
  std::atomic<bool> written_{false};
};

}  // namespace ckptfs::meta
