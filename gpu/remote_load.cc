#include "gpu/remote_load.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "gpu/check_read.h"
#include "io/mutex.h"
#include "io/parallel.h"
#include "meta/remote/chunk_run.h"

namespace ckptfs::gpu {
namespace {

using meta::remote::ChunkReader;
using meta::remote::kChunkBytes;
using meta::remote::RemoteFile;

constexpr size_t kConnections = 8;  // reads at a time, of all lanes

// A load, and what its threads share.
struct RemoteLoad {
  RemoteLoad(const RemoteInput& from, ReadPlan planned) : input(from), plan(std::move(planned)) {}

  const RemoteInput& input;
  const ReadPlan plan;
  std::vector<MemoryKind> kinds;  // of plan.wanted
  std::atomic<size_t> next{0};    // of plan.reads
  std::atomic<uint64_t> straight{0};
  std::atomic<bool> failed{false};
  io::Mutex mutex;
  std::optional<Error> error GUARDED_BY(mutex);  // the first one

  void fail(const Error& why) {
    const io::MutexLock lock(mutex);
    if (!error) error = why;
    failed = true;
  }
  Result<> outcome() {
    const io::MutexLock lock(mutex);
    return error ? Result<>(*error) : success();
  }
};

// Copies into device memory through the slots of a lane, one after the other. Thread-safe.
class SlotCopies {
 public:
  explicit SlotCopies(Lane& lane) : lane_(lane) {}

  Result<> copy(std::byte* target, std::span<const std::byte> bytes) {
    const io::MutexLock lock(mutex_);
    while (!bytes.empty()) {
      if (filled_ == lane_.slots[slot_].memory.size()) TRY(take_next());
      const auto room = lane_.slots[slot_].memory.subspan(filled_);
      const auto some = room.first(std::min(room.size(), bytes.size()));
      std::memcpy(some.data(), bytes.data(), some.size());
      TRY(lane_.device.copy_in(target, some, lane_.stream.get()));
      filled_ += some.size();
      target += some.size();
      bytes = bytes.subspan(some.size());
    }
    return success();
  }

 private:
  Result<> take_next() REQUIRES(mutex_) {
    TRY(lane_.device.record(lane_.slots[slot_].copied.get(), lane_.stream.get()));
    slot_ = (slot_ + 1) % lane_.slots.size();
    filled_ = 0;
    return lane_.device.wait(lane_.slots[slot_].copied.get());
  }

  Lane& lane_;
  io::Mutex mutex_;
  size_t slot_ GUARDED_BY(mutex_) = 0;
  size_t filled_ GUARDED_BY(mutex_) = 0;  // bytes of it
};

Result<ChunkReader::Pieces> pieces_of(ChunkReader& reader, const RemoteFile& file, meta::remote::FileSpan span) {
  io::Mutex mutex;
  io::CondVar came;
  std::optional<Result<ChunkReader::Pieces>> pieces;
  reader.read(file, span, [&](Result<ChunkReader::Pieces> got) {
    const io::MutexLock lock(mutex);
    pieces = std::move(got);
    came.notify_all();
  });
  const io::MutexLock lock(mutex);
  came.wait(mutex, [&] { return pieces.has_value(); });
  return std::move(*pieces);
}

// The work of one thread.
class RemoteReads {
 public:
  RemoteReads(RemoteLoad& load, SlotCopies& copies) : load_(load), copies_(copies) {}

  void run() {
    while (!load_.failed) {
      const size_t at = load_.next++;
      if (at >= load_.plan.reads.size()) return;
      const PlannedRead& read = load_.plan.reads[at];
      if (const auto fetched = fetch(read); !fetched) load_.fail(in_words(read, fetched.error()));
    }
  }

 private:
  const RemoteFile& file_of(const PlannedRead& read) const { return load_.input.files.file(read.file); }

  Result<> fetch(const PlannedRead& read) {
    const RemoteFile& file = file_of(read);
    const RemoteWait& wait = load_.input.wait;
    const uint64_t size = std::min(read.end, file.size()) - read.begin;
    std::byte* const target = straight_target(read, size);
    if (target == nullptr) return fetch_pieces(read, size);
    const auto limits = io::RequestLimits::within(wait.time, wait.stop != nullptr ? wait.stop : &load_.failed);
    TRY(file.step->read(file.entry, read.begin, {target, size}, limits));
    load_.straight += size;
    return success();
  }

  // Null: the read is not all of one target in host memory.
  std::byte* straight_target(const PlannedRead& read, uint64_t size) const {
    if (read.last - read.first != 1 || load_.kinds[read.first] != MemoryKind::host) return nullptr;
    const Wanted& wanted = load_.plan.wanted[read.first];
    const bool all = wanted.offset <= read.begin && wanted.offset + wanted.size >= read.begin + size;
    return all ? wanted.target + (read.begin - wanted.offset) : nullptr;
  }

  Result<> fetch_pieces(const PlannedRead& read, uint64_t size) {
    TRY_ASSIGN(const auto pieces, pieces_of(load_.input.reader, file_of(read), {read.begin, size}));
    return for_each_landing(load_.plan, read, [&](size_t wanted, const Landing& landing) {
      return land(pieces, landing, load_.kinds[wanted]);
    });
  }

  // A read begins where a chunk does, so each piece is a chunk.
  Result<> land(const ChunkReader::Pieces& pieces, Landing landing, MemoryKind kind) {
    while (landing.size > 0) {
      const auto chunk = pieces[landing.at / kChunkBytes].bytes.subspan(landing.at % kChunkBytes);
      const auto some = chunk.first(std::min<uint64_t>(chunk.size(), landing.size));
      if (kind == MemoryKind::host) {
        std::memcpy(landing.target, some.data(), some.size());
      } else {
        TRY(copies_.copy(landing.target, some));
      }
      landing.target += some.size();
      landing.at += some.size();
      landing.size -= some.size();
    }
    return success();
  }

  Error in_words(const PlannedRead& read, const Error& why) const {
    const bool damaged = why.errno_value() == EBADMSG;
    return Error(damaged ? EIO : why.errno_value(),
                 why.message() + ". It was read for: " + tensors_in(load_.plan, read, read.begin, read.end));
  }

  RemoteLoad& load_;
  SlotCopies& copies_;
};

// Nothing is in flight when it returns.
Result<> run_lane(RemoteLoad& load, Lane& lane, unsigned threads) {
  SlotCopies copies(lane);
  const auto done = io::for_each_parallel(threads, threads, [&](size_t) -> Result<> {
    TRY_ASSIGN(const Attached attached, Attached::make(lane.device));
    RemoteReads(load, copies).run();
    return success();
  });
  const auto drained = lane.device.drain(lane.stream.get());
  TRY(done);
  return drained;
}

Result<> check_wanted(const meta::remote::RemoteFiles& files, const std::vector<Wanted>& wanted) {
  for (const Wanted& one : wanted) {
    if (one.file >= files.list().size()) return Error(EINVAL, "there is no file " + std::to_string(one.file));
    const auto& [path, size] = files.list()[one.file];
    if (one.offset <= size && one.size <= size - one.offset) continue;
    return Error(EIO, path + ": it has " + std::to_string(size) + " bytes, and ends before what is wanted");
  }
  return success();
}

}  // namespace

Result<LoadReport> load_remote(const RemoteInput& input, Staging& staging, std::vector<Wanted> wanted, Stream stream) {
  TRY(check_wanted(input.files, wanted));
  Device& device = staging.device();
  TRY_ASSIGN(const Attached attached, Attached::make(device));
  RemoteLoad load(input, plan_reads(std::move(wanted), meta::remote::kMostRunBytes, kChunkBytes));
  TRY_ASSIGN(load.kinds, kinds_of(device, load.plan.wanted));
  TRY_ASSIGN(const OwnedEvent used, OwnedEvent::make(device));
  TRY(device.record(used.get(), stream));
  if (std::ranges::count(load.kinds, MemoryKind::host) != 0) TRY(device.wait(used.get()));
  const uint64_t before = input.reader.counts().bytes_fetched;
  const size_t threads = (kConnections + staging.lanes() - 1) / staging.lanes();
  const auto done = staging.run({}, [&](Lane& lane) -> Result<> {
    TRY(lane.device.order(lane.stream.get(), used.get()));
    return run_lane(load, lane, static_cast<unsigned>(threads));
  });
  TRY(done);
  TRY(load.outcome());
  LoadReport report;
  for (const Wanted& one : load.plan.wanted) report.bytes += one.size;
  report.read = input.reader.counts().bytes_fetched - before + load.straight;
  report.straight = load.straight;
  report.checked = report.read;
  return report;
}

}  // namespace ckptfs::gpu
