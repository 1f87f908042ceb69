// Saves parts of memory, on a device or not, into one file. Copying out of the memory and writing overlap, through the
// slots of the ring. The caller may continue as soon as everything is copied; the writes go on in the background.
//
// The file is written once, from its beginning to its end, in aligned blocks. It is written past the page cache
// (O_DIRECT) where the file system supports that. Its space is allocated before the first copy, so a full disk is
// reported at once.
//
// The digests of the file, if they are wanted, are taken from the slots while these are being written. So they delay
// neither the copies nor a disk that is slower than a processor's BLAKE3.
//
// Thread safety: any thread. Saves that use one ring run one after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpu/staging.h"
#include "io/fd.h"
#include "io/mutex.h"
#include "meta/formats/manifest.h"

namespace ckptfs::gpu {

// A piece of memory, and its place in the file.
struct Part {
  const std::byte* source = nullptr;
  uint64_t size = 0;
  uint64_t offset = 0;
};

class FileSave {
 public:
  // Begins a save. `file` must be open for writing, and empty. `parts` must not overlap; the gaps between them, up to
  // `size`, become zeros. Their memory must not change until wait_copied() has returned. `stream` is the stream on
  // which the caller wrote the parts: the save starts after the work that is on it now. Fails with EINVAL if parts
  // overlap or end beyond `size`, and with ENOSPC if the disk has no room.
  static Result<std::unique_ptr<FileSave>> begin(std::shared_ptr<Staging> staging, std::string path, io::Fd file,
                                                 uint64_t size, std::vector<Part> parts, Stream stream,
                                                 bool digests = false);
  // Waits for the end of the save.
  ~FileSave();
  FileSave(const FileSave&) = delete;
  FileSave& operator=(const FileSave&) = delete;

  // Waits until all parts are copied, or the save has failed. Either way their memory may change.
  Result<> wait_copied();
  // Waits until the file's content is on the disk. Making its name durable is up to the caller.
  Result<> wait_durable();

  // When stages of the save ended. Copying and writing overlap: what is written after `copied` is what was still in the
  // ring then. Constant once wait_durable() has returned success.
  struct Times {
    std::chrono::steady_clock::time_point begun, copied, written;
  };
  const Times& times() const { return times_; }
  // The digests of the file, if they were wanted; once wait_durable() has returned success. The caller may move them.
  std::optional<meta::formats::FileDigests>& digests() { return digests_; }

 private:
  class Lane;
  FileSave(std::shared_ptr<Staging> staging, std::string path, io::Fd file, uint64_t size, std::vector<Part> parts);
  Result<> prepare(Stream stream);
  Result<> write_or_say_why();
  Result<> write_all();
  Result<> finish_file();
  void take_digests(uint64_t offset, std::span<const std::byte> slot);
  void note_copied();
  void end(Result<> outcome);

  const std::shared_ptr<Staging> staging_;
  const std::string path_;
  const io::Fd file_;
  const uint64_t size_;
  const std::vector<Part> parts_;  // by offset, none empty
  std::vector<MemoryKind> kinds_;  // of the parts
  std::optional<OwnedEvent> ready_;
  uint64_t chunks_ = 0;  // number of slot-sized pieces of the file
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::thread thread_;
  Times times_;
  std::optional<meta::formats::FileDigests> digests_;  // its list is of full length from the beginning

  io::Mutex mutex_;
  io::CondVar changed_;
  uint64_t copied_ GUARDED_BY(mutex_) = 0;              // number of chunks
  std::optional<Result<>> outcome_ GUARDED_BY(mutex_);  // empty while the save runs
};

}  // namespace ckptfs::gpu
