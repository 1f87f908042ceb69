// Reads files of committed steps for many readers at once. A chunk is fetched once for all who wait for it, is compared
// with its digest before anybody sees a byte of it, and is kept for a while in memory, and in a cache on the disk if
// there is one.
//
// Chunks that lie one after the other are fetched by one request of up to 16 MiB, several requests at a time. What
// somebody waits for comes before what is fetched ahead. Memory is bounded: for what is on its way, what is kept, and
// what readers still hold.
//
// Nobody waits longer than Settings::time for a request of theirs, from when it was asked for; but a folder on a file
// system that hangs blocks as that does. A request that fails fails for all who wait for it; whoever asks later tries
// anew. If what is wrong may be one chunk of several, each is asked for alone, so that only its readers are told.
//
// Thread safety: all of it. Lock: mutex_, then that of the cache; no callback is called under it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "io/mutex.h"
#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/chunk_cache.h"
#include "meta/remote/remote_step.h"

namespace ckptfs::meta::remote {

// A regular file of a step.
struct RemoteFile {
  std::shared_ptr<const RemoteStep> step;
  UnionEntry entry;

  uint64_t size() const { return step->entry(entry).size; }
};

struct FileSpan {
  uint64_t offset = 0;
  uint64_t size = 0;
};

class ChunkReader {
 public:
  struct Settings {
    unsigned connections = 8;
    size_t memory = size_t{144} << 20;
    std::chrono::milliseconds time{60'000};
    ChunkCache* cache = nullptr;              // outlives the reader
    const std::atomic<bool>* stop = nullptr;  // likewise; while it is set, all requests end with ECANCELED
  };
  // `store` outlives the reader.
  ChunkReader(io::ObjectStore& store, const Settings& settings);
  ChunkReader(const ChunkReader&) = delete;
  ChunkReader& operator=(const ChunkReader&) = delete;
  ~ChunkReader() { stop(); }
  // Ends all requests. Who waits is told ECANCELED before it returns, and so is who asks later.
  void stop();

  // Bytes, and what owns them.
  struct Piece {
    std::shared_ptr<const void> owner;
    std::span<const std::byte> bytes;
  };
  using Pieces = std::vector<Piece>;
  using Done = std::function<void(Result<Pieces>)>;
  // Calls done() once: at once if nothing has to be fetched, else from a thread of the reader's. What is asked for must
  // lie within the file.
  void read(const RemoteFile& file, FileSpan wanted, Done done);
  // The same, and waits.
  Result<> read_now(const RemoteFile& file, uint64_t offset, std::span<std::byte> buffer);
  // Fetches what is not here yet, soon, as far as there is not too much to do: returns up to which byte. An error is
  // not told.
  uint64_t fetch_ahead(const RemoteFile& file, FileSpan wanted);

  struct Counts {
    std::atomic<uint64_t> from_memory{0}, from_cache{0}, fetched{0}, failed{0};  // chunks, but failed: requests
    std::atomic<uint64_t> bytes_fetched{0};
  };
  const Counts& counts() const { return counts_; }
  const ChunkCache* cache() const { return settings_.cache; }
  // The last error, with its time.
  struct Failure {
    std::string text;
    std::chrono::system_clock::time_point when;
  };
  std::optional<Failure> last_failure() const;

 private:
  using Clock = std::chrono::steady_clock;
  class Memory;
  struct Run;
  struct CachedChunk;
  struct Waiting;
  // With the length, since a part may tell a wrong one.
  struct Key {
    io::Digest digest{};
    uint32_t length = 0;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  static Key key_of(const Chunk& chunk) { return {chunk.digest, chunk.length}; }
  struct Place {
    Run* run = nullptr;  // in runs_
    size_t at = 0;       // in the run's bytes
  };
  using Runs = std::list<std::shared_ptr<Run>>;

  void begin(const std::shared_ptr<Waiting>& waiting);
  void place(Waiting& waiting) REQUIRES(mutex_);
  bool is_missing(const Chunk& chunk, bool ask_cache) const REQUIRES(mutex_);
  enum class How { wanted, alone, ahead };  // alone: each chunk by a request of its own
  void plan(const RemoteFile& file, std::span<const Chunk> missing, uint64_t first, How how) REQUIRES(mutex_);
  void want(Run& run) REQUIRES(mutex_);
  std::shared_ptr<Run> next_run_to_fetch() REQUIRES(mutex_);
  std::vector<std::shared_ptr<Run>> take_late_runs() REQUIRES(mutex_);
  bool make_room(const Run& wanted) REQUIRES(mutex_);
  void evict_for(size_t bytes, bool also_unread) REQUIRES(mutex_);
  void drop(Run& run) REQUIRES(mutex_);
  void serve();
  Result<> fetch(Run& run);
  void finish(const std::shared_ptr<Run>& run, const Result<>& fetched);
  void answer(const std::shared_ptr<Waiting>& waiting);

  io::ObjectStore& store_;
  const Settings settings_;
  Counts counts_;
  std::atomic<bool> stop_{false};
  mutable io::Mutex mutex_;
  io::CondVar changed_;
  std::unordered_map<Key, Place, Hash> places_ GUARDED_BY(mutex_);  // of the chunks of runs_
  Runs runs_ GUARDED_BY(mutex_);  // asked for, on their way, and kept; the one that was used last is the last one
  std::deque<Run*> wanted_ GUARDED_BY(mutex_), ahead_ GUARDED_BY(mutex_);  // not begun yet
  unsigned coming_ GUARDED_BY(mutex_) = 0;                                 // runs on their way
  size_t resident_ GUARDED_BY(mutex_) = 0;                                 // bytes of runs that were begun
  std::optional<Failure> last_failure_ GUARDED_BY(mutex_);
  const std::shared_ptr<Memory> memory_;
  std::vector<std::thread> threads_;
};

}  // namespace ckptfs::meta::remote
