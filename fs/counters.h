// What the mount counts, for `ckptfs status` and metrics. Relaxed atomics: any thread adds, readers see a recent value.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ckptfs::fs {

using Counter = std::atomic<uint64_t>;

inline void add(Counter& counter, uint64_t amount = 1) { counter.fetch_add(amount, std::memory_order_relaxed); }
inline uint64_t value(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

// The requests of the kernel by kind; kOperationNames is in the same order.
enum class Operation : size_t {
  lookup,
  forget,
  getattr,
  setattr,
  readlink,
  mknod,
  mkdir,
  unlink,
  rmdir,
  symlink,
  rename,
  link,
  create,
  open,
  read,
  write,
  release,
  fsync,
  opendir,
  readdir,
  readdirplus,
  releasedir,
  fsyncdir,
  statfs,
  setxattr,
  getxattr,
  listxattr,
  removexattr,
  fallocate,
  lseek,
  copy_file_range,
  ioctl,
  count
};
inline constexpr std::array<const char*, static_cast<size_t>(Operation::count)> kOperationNames = {
    "lookup",     "forget",   "getattr",         "setattr",  "readlink", "mknod",     "mkdir",
    "unlink",     "rmdir",    "symlink",         "rename",   "link",     "create",    "open",
    "read",       "write",    "release",         "fsync",    "opendir",  "readdir",   "readdirplus",
    "releasedir", "fsyncdir", "statfs",          "setxattr", "getxattr", "listxattr", "removexattr",
    "fallocate",  "lseek",    "copy_file_range", "ioctl"};
static_assert(kOperationNames.back() != nullptr, "every operation has a name");

struct Counters {
  std::array<Counter, static_cast<size_t>(Operation::count)> operations{};

  Counter opens_passthrough{0};     // data bypasses the daemon
  Counter opens_through_daemon{0};  // on a mount in passthrough mode, but this one comes through the daemon
  Counter opens_direct{0};          // on a mount, or of a file, without passthrough

  Counter opens_of_views{0};
  Counter opens_of_shared_views{0};  // of these: data bypasses the daemon

  Counter bytes_read{0};     // through the daemon
  Counter bytes_written{0};  // through the daemon
  Counter clones{0};         // ranges shared by copy_file_range
  Counter bytes_cloned{0};
  Counter bytes_copied{0};  // by copy_file_range, where blocks could not be shared

  Counter adoptions{0};      // files that began as a clone of what they would probably hold
  Counter bytes_adopted{0};  // written by others to such files, and there already
  Counter wrong_guesses{0};  // of these files, that held something else for the most part

  Counter adoption_fallbacks{0};     // files that could not be cloned: written plainly instead
  Counter direct_fallbacks{0};       // O_DIRECT below was refused: buffered instead
  Counter io_uring_fallbacks{0};     // an overwrite at an unaligned offset that waited for the disk in the system call
  Counter passthrough_fallbacks{0};  // a file that got no backing id: direct instead
  Counter view_fallbacks{0};         // a file of a view that blocks could not be shared for: the daemon reads it
  Counter clone_fallbacks{0};        // a range that could not be shared: copied instead
  Counter write_errors{0};           // writes, allocations and write-backs that failed
  Counter read_errors{0};

  Counter saves{0};
  Counter saves_failed{0};
  Counter save_microseconds{0};
  Counter seals{0};
  Counter notifications{0};

  void count(Operation operation) { add(operations[static_cast<size_t>(operation)]); }
};

}  // namespace ckptfs::fs
