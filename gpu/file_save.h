// Save: memory of the caller, on a device or not, into one file. Copies out of it, writes, and what is left of the ring
// between them overlap; the caller may go on as soon as the copies have ended, and the rest goes on behind it.
//
// The file is written once, from its beginning to its end, in aligned blocks past the page cache where the file system
// takes that (O_DIRECT), into space that is allocated before the first copy, so that a full disk is told at once.
//
// Thread safety: any thread; saves of one ring take turns.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpu/staging.h"
#include "io/fd.h"

namespace ckptfs::gpu {

// Memory, and where in the file it goes.
struct Part {
  const std::byte* source = nullptr;
  uint64_t size = 0;
  uint64_t offset = 0;
};

class FileSave {
 public:
  // `file`: for writing, empty. `parts`: none over another; between them are zeros up to `size`. Their memory stays as
  // it is until wait_copied() has returned. `stream`: the caller's, on which they were written; what is on it now is
  // waited for. EINVAL: parts that overlap, or end behind `size`; ENOSPC: there is no room for it.
  static Result<std::unique_ptr<FileSave>> begin(std::shared_ptr<Staging> staging, std::string path, io::Fd file,
                                                 uint64_t size, std::vector<Part> parts, Stream stream);
  // Waits for its end.
  ~FileSave();
  FileSave(const FileSave&) = delete;
  FileSave& operator=(const FileSave&) = delete;

  // The parts are copied: their memory may change. Or it has failed, and they are needed no more.
  Result<> wait_copied();
  // All of the file is on the disk. Its name is not this one's business.
  Result<> wait_durable();

 private:
  class Lane;
  FileSave(std::shared_ptr<Staging> staging, std::string path, io::Fd file, uint64_t size, std::vector<Part> parts);
  Result<> prepare(Stream stream);
  Result<> write_or_say_why();
  Result<> write_all();
  Result<> finish_file();
  void note_copied();
  void end(Result<> outcome);

  const std::shared_ptr<Staging> staging_;
  const std::string path_;
  const io::Fd file_;
  const uint64_t size_;
  const std::vector<Part> parts_;  // by offset, none empty
  std::vector<MemoryKind> kinds_;  // of the parts
  std::optional<OwnedEvent> ready_;
  uint64_t chunks_ = 0;  // of a slot's size each
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t copied_ = 0;              // guarded by mutex_; chunks
  std::optional<Result<>> outcome_;  // guarded by mutex_; none: it goes on
};

}  // namespace ckptfs::gpu
