#include "gpu/load.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>

#include "gpu/check_read.h"
#include "io/aligned_buffer.h"
#include "io/fault.h"
#include "io/log.h"

namespace ckptfs::gpu {
namespace {

// Reads of one lane that are in flight. More of them would not make a disk faster, but use more slots, whose pages are
// made at their first use.
constexpr size_t kMostReading = 4;

// Returns true if at least half of the file is in the page cache (cachestat(2), Linux 6.5), and false if the kernel
// cannot tell.
bool is_cached(int fd, uint64_t size) {
  struct {
    uint64_t offset, length;
  } range{0, size};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  constexpr long kCachestat = 451;  // the same on every architecture; glibc has no name for it yet
  if (::syscall(kCachestat, fd, &range, &found, 0) != 0) return false;
  return found.cached * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) >= size / 2;
}

Result<> set_direct(int fd, bool direct) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return last_error("F_GETFL");
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  if (wanted != flags && ::fcntl(fd, F_SETFL, wanted) != 0) return last_error("O_DIRECT");
  return success();
}

// A load, and the state that its lanes share.
struct LoadJob {
  const std::vector<SourceFile>& files;
  const ReadPlan plan;
  std::vector<MemoryKind> kinds;  // of plan.wanted
  std::atomic<size_t> next{0};    // of plan.reads
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> straight{0};
  std::atomic<uint64_t> checked{0};
};

// The work of one lane. It begins reads while it has idle slots, hands on the data that has arrived, and reuses a slot
// when the device has copied it.
class LoadLane {
 public:
  LoadLane(LoadJob& job, Lane& lane) : job_(job), lane_(lane), reads_(lane.slots.size()) {
    idle_.reserve(lane.slots.size());
    for (size_t slot = lane.slots.size(); slot > 0; --slot) idle_.push_back(slot - 1);
  }

  // Nothing is in flight when it returns, even after an error.
  Result<> run() {
    for (;;) {
      begin_reads();
      take_back(false);
      if (reading_ > 0) {
        finish_read();
      } else if (!copying_.empty()) {
        take_back(true);
      } else if (job_.failed || job_.next >= job_.plan.reads.size()) {
        break;
      }
    }
    return error_ ? Result<>(*error_) : Result<>(success());
  }

 private:
  struct Read {
    const PlannedRead* planned = nullptr;
    bool straight = false;
    std::span<std::byte> memory = {};  // the target's or the slot's
  };

  void fail(const Error& error) {
    job_.failed = true;
    if (!error_) error_ = error;
  }

  void begin_reads() {
    while (!idle_.empty() && reading_ < kMostReading && !job_.failed) {
      const size_t at = job_.next++;
      if (at >= job_.plan.reads.size()) return;
      const size_t slot = idle_.back();
      if (const auto begun = begin(job_.plan.reads[at], slot); !begun) return fail(begun.error());
      idle_.pop_back();
      ++reading_;
    }
  }

  Result<> begin(const PlannedRead& read, size_t slot) {
    TRY(io::fault_point("load.read"));
    const SourceFile& file = job_.files[read.file];
    std::byte* const target = straight_target(read, file);
    const size_t size = read.end - read.begin;
    const auto memory = target != nullptr ? std::span(target, size) : lane_.slots[slot].memory.first(size);
    reads_[slot] = {&read, target != nullptr, memory};
    return lane_.queue->begin(
        {io::TransferQueue::Kind::read, file.fd, read.file, memory, read.begin, read.least, slot});
  }

  // Returns the memory for all of the read, if that is one target in host memory with an alignment that O_DIRECT
  // accepts; else null.
  std::byte* straight_target(const PlannedRead& read, const SourceFile& file) const {
    if (read.last - read.first != 1 || job_.kinds[read.first] != MemoryKind::host) return nullptr;
    const Wanted& wanted = job_.plan.wanted[read.first];
    if (wanted.offset > read.begin || wanted.offset + wanted.size < read.end) return nullptr;
    std::byte* const target = wanted.target + (read.begin - wanted.offset);
    return reinterpret_cast<uintptr_t>(target) % file.memory_alignment == 0 ? target : nullptr;
  }

  void finish_read() {
    const auto finished = lane_.queue->finish();
    --reading_;
    const size_t slot = finished.tag;
    const Read read = reads_[slot];
    if (!finished.bytes) {
      idle_.push_back(slot);
      const SourceFile& file = job_.files[read.planned->file];
      return fail(with_name(file.path, finished.bytes.error()));
    }
    if (read.straight) job_.straight += read.planned->end - read.planned->begin;
    if (const auto checked = check(read, finished.bytes.value()); !checked) fail(checked.error());
    const auto copying = read.straight || job_.failed ? Result<bool>(false) : hand_on(*read.planned, slot);
    if (!copying) fail(copying.error());
    // Copies may have begun before one of them failed, so the slot is waited for in that case, too.
    if (!copying || copying.value()) return copying_.push_back(slot);
    idle_.push_back(slot);
  }

  // Of a read that has brought so many bytes.
  Result<> check(const Read& read, size_t bytes) {
    const SourceFile& file = job_.files[read.planned->file];
    if (file.digests == nullptr || job_.failed) return success();
    const auto content = read.memory.first(std::min(bytes, read.memory.size()));
    TRY_ASSIGN(const uint64_t checked, check_read(file, job_.plan, *read.planned, content));
    job_.checked += checked;
    return success();
  }

  // Returns true if the device is still reading the slot.
  Result<bool> hand_on(const PlannedRead& read, size_t slot) {
    bool copying = false;
    const auto memory = lane_.slots[slot].memory;
    const auto land = [&](const Landing& landing, MemoryKind kind) -> Result<> {
      const auto bytes = memory.subspan(landing.at, landing.size);
      if (kind == MemoryKind::host) {
        std::memcpy(landing.target, bytes.data(), bytes.size());
        return success();
      }
      copying = true;
      return lane_.device.copy_in(landing.target, bytes, lane_.stream.get());
    };
    const auto landed = for_each_landing(
        job_.plan, read, [&](size_t wanted, const Landing& landing) { return land(landing, job_.kinds[wanted]); });
    if (copying) {
      if (const auto recorded = lane_.device.record(lane_.slots[slot].copied.get(), lane_.stream.get()); !recorded) {
        TRY(lane_.device.drain(lane_.stream.get()));
        return recorded.error();
      }
    }
    TRY(landed);
    return copying;
  }

  // Makes the slots idle whose copies have ended; with `wait`, waits for at least one.
  void take_back(bool wait) {
    while (!copying_.empty()) {
      const Event copied = lane_.slots[copying_.front()].copied.get();
      const auto done = wait ? wait_for(copied) : lane_.device.is_done(copied);
      if (!done) fail(done.error());
      if (done && !done.value()) return;
      idle_.push_back(copying_.front());
      copying_.pop_front();
      wait = false;
    }
  }

  Result<bool> wait_for(Event event) {
    TRY(lane_.device.wait(event));
    return true;
  }

  LoadJob& job_;
  Lane& lane_;
  std::vector<Read> reads_;     // by slot
  std::vector<size_t> idle_;    // slots
  std::deque<size_t> copying_;  // slots, in the order of the stream
  size_t reading_ = 0;
  std::optional<Error> error_;
};

// The first `size` bytes of a range.
Wanted first_of(Wanted one, uint64_t size) {
  one.size = size;
  return one;
}

// All but the first `size` bytes of a range.
Wanted rest_of(Wanted one, uint64_t size) {
  one.offset += size;
  one.size -= size;
  one.target += size;
  return one;
}

// What comes through the page cache into host memory needs no alignment. So each large range is read straight into its
// target, without a slot. Of a file that is checked, that is only what has whole chunks of the range. The chunks that
// it shares with its neighbours are read with these.
Result<> choose_alone(Device& device, const std::vector<SourceFile>& files, const std::vector<Chunks>& chunks,
                      std::vector<Wanted>& wanted) {
  std::vector<Wanted> edges;
  for (Wanted& one : wanted) {
    if (files[one.file].direct || one.size < kWorthReading) continue;
    TRY_ASSIGN(const MemoryKind kind, device.kind_of(one.target));
    if (kind != MemoryKind::host) continue;
    const auto [chunk, file_end] = chunks[one.file];
    const uint64_t end = one.offset + one.size;
    const uint64_t head = chunk == 0 ? 0 : (chunk - one.offset % chunk) % chunk;
    const uint64_t tail = chunk == 0 || end == file_end ? 0 : end % chunk;
    if (head + tail + kWorthReading > one.size) continue;
    if (head > 0) edges.push_back(first_of(one, head));
    if (tail > 0) edges.push_back(rest_of(one, one.size - tail));
    one = first_of(rest_of(one, head), one.size - head - tail);
    one.alone = true;
  }
  wanted.insert(wanted.end(), edges.begin(), edges.end());
  return success();
}

// The chunks of each file that can be checked: a chunk that is larger than a slot is never whole in a read.
std::vector<Chunks> chunks_of(const std::vector<SourceFile>& files, uint64_t slot) {
  std::vector<Chunks> chunks;
  for (const SourceFile& file : files) {
    const bool usable = file.digests != nullptr && file.digests->chunk <= slot;
    chunks.push_back(usable ? Chunks{file.digests->chunk, file.size} : Chunks());
  }
  return chunks;
}

Result<> check_ranges(const std::vector<SourceFile>& files, const std::vector<Wanted>& wanted) {
  for (const Wanted& one : wanted) {
    if (one.file >= files.size()) return Error(EINVAL, "there is no file " + std::to_string(one.file));
    const SourceFile& file = files[one.file];
    if (one.offset <= file.size && one.size <= file.size - one.offset) continue;
    return Error(EIO, file.path + ": it has " + std::to_string(file.size) + " bytes, and ends before what is wanted");
  }
  return success();
}

}  // namespace

Result<SourceFile> make_source(std::string path, int fd) {
  TRY_ASSIGN(const struct stat st, io::stat_fd(fd));
  SourceFile source{std::move(path), fd, static_cast<uint64_t>(st.st_size)};
  const io::DirectAlignment alignment = io::direct_alignment(source.fd);
  const bool direct =
      !is_cached(source.fd, source.size) && std::max(alignment.memory, alignment.offset) <= Staging::kAlignment;
  const auto set = set_direct(source.fd, direct);
  if (!set && !direct) return set.error();
  if (!set) log::info("{}: {}; it is read through the page cache", source.path, set.error().message());
  source.direct = direct && set;
  source.memory_alignment = source.direct ? alignment.memory : 1;
  return source;
}

Result<std::vector<MemoryKind>> kinds_of(Device& device, const std::vector<Wanted>& wanted) {
  std::vector<MemoryKind> kinds;
  kinds.reserve(wanted.size());
  for (const Wanted& one : wanted) {
    TRY_ASSIGN(const MemoryKind kind, device.kind_of(one.target));
    kinds.push_back(kind);
  }
  return kinds;
}

Result<LoadReport> load(Staging& staging, const std::vector<SourceFile>& files, std::vector<Wanted> wanted,
                        Stream stream) {
  TRY_ASSIGN(const Attached attached, Attached::make(staging.device()));
  TRY(check_ranges(files, wanted));
  const std::vector<Chunks> chunks = chunks_of(files, staging.slot_size());
  TRY(choose_alone(staging.device(), files, chunks, wanted));
  LoadJob job{files, plan_reads(std::move(wanted), staging.slot_size(), Staging::kAlignment, chunks), {}};
  TRY_ASSIGN(job.kinds, kinds_of(staging.device(), job.plan.wanted));
  TRY_ASSIGN(const OwnedEvent used, OwnedEvent::make(staging.device()));
  TRY(staging.device().record(used.get(), stream));
  // The lanes' streams wait for the event. The processor's own copies do not, so this thread waits.
  if (std::ranges::count(job.kinds, MemoryKind::host) != 0) TRY(staging.device().wait(used.get()));
  std::vector<int> descriptors;
  for (const SourceFile& file : files) descriptors.push_back(file.fd);
  const auto done = staging.run(descriptors, [&](Lane& lane) -> Result<> {
    TRY(lane.device.order(lane.stream.get(), used.get()));
    return LoadLane(job, lane).run();
  });
  TRY(done);
  LoadReport report;
  for (const Wanted& one : job.plan.wanted) report.bytes += one.size;
  for (const PlannedRead& read : job.plan.reads) {
    report.read += read.least;
    if (files[read.file].direct) report.direct += read.least;
  }
  report.straight = job.straight;
  report.checked = job.checked;
  return report;
}

}  // namespace ckptfs::gpu
