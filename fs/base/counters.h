// What the mount counts, for `ckptfs status` and metrics. Relaxed atomics: any thread adds, readers see a recent value.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ckptfs::fs {

using Counter = std::atomic<uint64_t>;

inline void add(Counter& counter, uint64_t amount = 1) { counter.fetch_add(amount, std::memory_order_relaxed); }
inline uint64_t value(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

// How long things took, counted in classes that each go four times as far as the one before, from 4 us to 17 s.
class Histogram {
 public:
  static constexpr size_t kBounds = 12;

  // The upper end of a class, in microseconds.
  static constexpr uint64_t bound(size_t at) { return uint64_t{4} << (2 * at); }
  void add(std::chrono::nanoseconds took) {
    const auto microseconds = static_cast<uint64_t>(took.count() < 0 ? 0 : (took.count() + 999) / 1000);
    size_t at = 0;
    while (at < kBounds && microseconds > bound(at)) ++at;
    fs::add(classes_[at]);
    fs::add(nanoseconds_, static_cast<uint64_t>(took.count() < 0 ? 0 : took.count()));
  }
  // kBounds: longer than all.
  uint64_t in_class(size_t at) const { return value(classes_[at]); }
  double seconds() const { return static_cast<double>(value(nanoseconds_)) / 1e9; }

 private:
  std::array<Counter, kBounds + 1> classes_{};
  Counter nanoseconds_{0};
};

// What failed of a write; kWriteNames is in the same order.
enum class WriteFailure : size_t { write, truncate, fallocate, copy_file_range, fdatasync, count };
inline constexpr std::array<const char*, static_cast<size_t>(WriteFailure::count)> kWriteNames = {
    "write", "truncate", "fallocate", "copy_file_range", "fdatasync"};

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
  flush,
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
    "lookup",      "forget",     "getattr",  "setattr",         "readlink", "mknod",    "mkdir",
    "unlink",      "rmdir",      "symlink",  "rename",          "link",     "create",   "open",
    "read",        "write",      "flush",    "release",         "fsync",    "opendir",  "readdir",
    "readdirplus", "releasedir", "fsyncdir", "statfs",          "setxattr", "getxattr", "listxattr",
    "removexattr", "fallocate",  "lseek",    "copy_file_range", "ioctl"};
static_assert(kOperationNames.back() != nullptr, "every operation has a name");

struct Counters {
  static constexpr size_t kOperations = static_cast<size_t>(Operation::count);
  std::array<Counter, kOperations> operations{};
  std::array<Counter, kOperations> failed{};     // with an error that a person should know of, which is in the log
  std::array<Histogram, kOperations> latency{};  // until the kernel had its answer

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

  Counter adoptions{0};      // files that share blocks of what they would probably hold
  Counter bytes_adopted{0};  // written to such files, and shared instead
  Counter wrong_guesses{0};  // new files that held something else for the most part

  Counter adoption_fallbacks{0};     // whose blocks could not be shared: written plainly instead
  Counter direct_fallbacks{0};       // O_DIRECT below was refused: buffered instead
  Counter io_uring_fallbacks{0};     // an overwrite at an unaligned offset that waited for the disk in the system call
  Counter passthrough_fallbacks{0};  // a file that got no backing id: direct instead
  Counter view_fallbacks{0};         // a file of a view that blocks could not be shared for: the daemon reads it
  Counter clone_fallbacks{0};        // a range that could not be shared: copied instead
  std::array<Counter, static_cast<size_t>(WriteFailure::count)> write_errors{};
  Counter read_errors{0};

  Counter saves{0};
  Counter saves_refused{0};  // what was asked for cannot be
  Counter saves_failed{0};
  Histogram save_time;
  Counter seals{0};
  Counter notifications{0};

  void count(Operation operation) { add(operations[static_cast<size_t>(operation)]); }
  uint64_t all_write_errors() const {
    uint64_t all = 0;
    for (const Counter& errors : write_errors) all += value(errors);
    return all;
  }
};

}  // namespace ckptfs::fs
