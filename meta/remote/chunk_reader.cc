#include "meta/remote/chunk_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/aligned_buffer.h"
#include "meta/remote/chunk_run.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMostSpare = 4;  // buffers of a run
constexpr size_t kMostSpareChunks = 8;
constexpr size_t kMostAhead = 32;  // runs that nobody waits for yet
constexpr std::chrono::milliseconds kPoll{5};
constexpr std::chrono::seconds kUnread{10};  // so long what was fetched ahead waits for its reader

}  // namespace

// Memory of runs. New memory costs almost as much as what is done with it, so a little of it is kept for the next run.
class ChunkReader::Memory {
 public:
  io::AlignedBuffer take(size_t size) {
    const io::MutexLock lock(mutex_);
    if (size <= kMostRunBytes / 2 || spare_.empty()) return {};
    io::AlignedBuffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  void give_back(io::AlignedBuffer buffer, size_t size) {
    const io::MutexLock lock(mutex_);
    if (size > kMostRunBytes / 2 && spare_.size() < kMostSpare) spare_.push_back(std::move(buffer));
  }
  io::AlignedBuffer take_chunk() {
    const io::MutexLock lock(mutex_);
    if (spare_chunks_.empty()) return {};
    io::AlignedBuffer buffer = std::move(spare_chunks_.back());
    spare_chunks_.pop_back();
    return buffer;
  }
  void give_back_chunk(io::AlignedBuffer buffer) {
    const io::MutexLock lock(mutex_);
    if (spare_chunks_.size() < kMostSpareChunks) spare_chunks_.push_back(std::move(buffer));
  }

 private:
  io::Mutex mutex_;
  std::vector<io::AlignedBuffer> spare_ GUARDED_BY(mutex_), spare_chunks_ GUARDED_BY(mutex_);
};

// A chunk that the cache had.
struct ChunkReader::CachedChunk {
  explicit CachedChunk(std::shared_ptr<Memory> its_memory) : memory(std::move(its_memory)) {
    owned = memory->take_chunk();
    room = owned.get(kChunkBytes);
  }
  CachedChunk(const CachedChunk&) = delete;
  CachedChunk& operator=(const CachedChunk&) = delete;
  ~CachedChunk() { memory->give_back_chunk(std::move(owned)); }

  const std::shared_ptr<Memory> memory;
  io::AlignedBuffer owned;
  std::span<std::byte> room;  // empty: memory is short
};

// Chunks that one request brings.
struct ChunkReader::Run {
  explicit Run(std::shared_ptr<Memory> its_memory) : memory(std::move(its_memory)) {}
  // AlignedBuffer has huge pages.
  size_t memory_taken() const { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() { memory->give_back(std::move(owned), buffer.size()); }

  enum class State { asked, coming, here };
  RemoteFile file;
  std::vector<Chunk> chunks;
  uint64_t first = 0;  // the number of the first one in the file
  uint32_t bytes = 0;
  bool ahead = false;  // nobody waits for it yet
  State state = State::asked;
  Clock::time_point deadline, came;
  const std::shared_ptr<Memory> memory;
  io::AlignedBuffer owned;
  std::span<std::byte> buffer;  // in it
  std::vector<std::shared_ptr<Waiting>> waiting;
  Runs::iterator self;
};

// One who waits for runs.
struct ChunkReader::Waiting {
  struct Part {
    Chunk chunk;
    uint64_t skip = 0, take = 0;  // of the chunk
    std::shared_ptr<Run> run;     // null: the cache has the chunk
    size_t at = 0;                // in the run's bytes
  };
  RemoteFile file;
  uint64_t first = 0;  // the number of the first chunk in the file
  std::vector<Part> parts;
  bool ask_cache = true;  // false: it did not have what it had promised
  bool alone = false;     // each chunk by a request of its own: one of several was wrong
  bool again = false;     // that is to be tried once the other runs have come
  size_t missing = 0;     // runs that have not come yet
  std::optional<Error> error;
  Done done;
};

size_t ChunkReader::Hash::operator()(const Key& key) const {
  size_t hash = 0;
  std::memcpy(&hash, key.digest.data(), sizeof(hash));
  return hash ^ key.length;
}

ChunkReader::ChunkReader(io::ObjectStore& store, const Settings& settings)
    : store_(store), settings_(settings), memory_(std::make_shared<Memory>()) {
  for (unsigned i = 0; i < settings.connections; ++i) {
    threads_.emplace_back([this] { serve(); });
  }
}

void ChunkReader::stop() {
  {
    const io::MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  std::vector<std::shared_ptr<Run>> left;
  {
    const io::MutexLock lock(mutex_);
    std::ranges::copy_if(runs_, std::back_inserter(left),
                         [](const auto& run) { return run->state == Run::State::asked; });
    wanted_.clear();
    ahead_.clear();
  }
  for (const auto& run : left) finish(run, Error(ECANCELED, "the reader has ended"));
}

void ChunkReader::read(const RemoteFile& file, FileSpan wanted, Done done) {
  auto waiting = std::make_shared<Waiting>();
  waiting->file = file;
  waiting->done = std::move(done);
  if (wanted.size == 0) return waiting->done(Pieces());
  const uint64_t end = wanted.offset + wanted.size;
  waiting->first = wanted.offset / kChunkBytes;
  const Entry& entry = file.step->entry(file.entry);
  if (end > entry.size) return waiting->done(Error(EINVAL, "the file ends before what is to be read"));
  const uint64_t count = (end - 1) / kChunkBytes - waiting->first + 1;
  auto chunks = file.step->part(file.entry.slot).chunks(entry, waiting->first, count);
  if (!chunks) return waiting->done(chunks.error());
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t begin = (waiting->first + i) * kChunkBytes;
    const uint64_t from = std::max(begin, wanted.offset), to = std::min(begin + kChunkBytes, end);
    waiting->parts.push_back({chunks.value()[i], from - begin, to - from, nullptr, 0});
  }
  begin(waiting);
}

Result<> ChunkReader::read_now(const RemoteFile& file, uint64_t offset, std::span<std::byte> buffer) {
  io::Mutex mutex;
  io::CondVar came;
  std::optional<Result<>> outcome;
  read(file, {offset, buffer.size()}, [&](const Result<Pieces>& pieces) {
    size_t at = 0;
    for (const Piece& piece : pieces ? pieces.value() : Pieces()) {
      std::memcpy(buffer.data() + at, piece.bytes.data(), piece.bytes.size());
      at += piece.bytes.size();
    }
    const io::MutexLock lock(mutex);
    outcome = pieces ? success() : Result<>(pieces.error());
    came.notify_all();
  });
  const io::MutexLock lock(mutex);
  came.wait(mutex, [&] { return outcome.has_value(); });
  return *outcome;
}

uint64_t ChunkReader::fetch_ahead(const RemoteFile& file, FileSpan wanted) {
  const Entry& entry = file.step->entry(file.entry);
  const uint64_t end = std::min(wanted.offset + wanted.size, entry.size);
  if (wanted.offset >= end) return end;
  const uint64_t first = wanted.offset / kChunkBytes, count = (end - 1) / kChunkBytes - first + 1;
  const auto chunks = file.step->part(file.entry.slot).chunks(entry, first, count);
  if (!chunks) return end;  // who reads is told
  size_t at = 0;
  {
    const io::MutexLock lock(mutex_);
    const std::span all(chunks.value());
    while (!stop_ && at < count && ahead_.size() < kMostAhead) {
      size_t end_of_missing = at;
      while (end_of_missing < count && is_missing(all[end_of_missing], true)) ++end_of_missing;
      if (end_of_missing > at) plan(file, all.subspan(at, end_of_missing - at), first + at, How::ahead);
      at = end_of_missing + 1;
    }
  }
  changed_.notify_all();
  return std::min(end, (first + at) * kChunkBytes);
}

std::optional<ChunkReader::Failure> ChunkReader::last_failure() const {
  const io::MutexLock lock(mutex_);
  return last_failure_;
}

void ChunkReader::begin(const std::shared_ptr<Waiting>& waiting) {
  {
    const io::MutexLock lock(mutex_);
    if (stop_) {
      waiting->error = Error(ECANCELED, "the reader has ended");
    } else {
      place(*waiting);
      for (const Waiting::Part& part : waiting->parts) {
        if (!part.run || part.run->state == Run::State::here) continue;
        auto& others = part.run->waiting;
        if (!others.empty() && others.back() == waiting) continue;  // another chunk of the same run
        if (std::ranges::find(others, waiting) != others.end()) continue;
        others.push_back(waiting);
        ++waiting->missing;
      }
      if (waiting->missing > 0) {
        changed_.notify_all();
        return;
      }
    }
  }
  answer(waiting);
}

// Finds out where each chunk is, or will be.
void ChunkReader::place(Waiting& waiting) {
  std::vector<Chunk> chunks;
  for (const Waiting::Part& part : waiting.parts) chunks.push_back(part.chunk);
  for (size_t at = 0; at < chunks.size(); ++at) {
    if (!is_missing(chunks[at], waiting.ask_cache)) continue;
    size_t end = at;
    while (end < chunks.size() && is_missing(chunks[end], waiting.ask_cache)) ++end;
    plan(waiting.file, std::span(chunks).subspan(at, end - at), waiting.first + at,
         waiting.alone ? How::alone : How::wanted);
  }
  for (Waiting::Part& part : waiting.parts) {
    const auto found = places_.find(key_of(part.chunk));
    if (found == places_.end()) {
      ++counts_.from_cache;
      continue;
    }
    Run& run = *found->second.run;
    part.run = *run.self;
    part.at = found->second.at;
    if (run.state == Run::State::here) ++counts_.from_memory;
    want(run);
  }
}

bool ChunkReader::is_missing(const Chunk& chunk, bool ask_cache) const {
  if (places_.contains(key_of(chunk))) return false;
  return !ask_cache || settings_.cache == nullptr || !settings_.cache->has(chunk.digest);
}

void ChunkReader::plan(const RemoteFile& file, std::span<const Chunk> missing, uint64_t first, How how) {
  const bool ahead = how == How::ahead;
  for (uint64_t number = first; !missing.empty();) {
    const ChunkRun found = next_run(how == How::alone ? missing.first(1) : missing, number);
    auto run = std::make_shared<Run>(memory_);
    run->file = file;
    run->chunks.assign(found.chunks.begin(), found.chunks.end());
    run->first = number;
    run->bytes = found.bytes;
    run->ahead = ahead;
    run->deadline = Clock::now() + settings_.time;
    run->self = runs_.insert(runs_.end(), run);
    size_t at = 0;
    for (const Chunk& chunk : run->chunks) {
      places_.try_emplace(key_of(chunk), Place{run.get(), at});
      at += chunk.length;
    }
    (ahead ? ahead_ : wanted_).push_back(run.get());
    number += found.chunks.size();
    missing = missing.subspan(found.chunks.size());
  }
}

// Somebody waits for the run, or uses it.
void ChunkReader::want(Run& run) {
  runs_.splice(runs_.end(), runs_, run.self);
  if (!std::exchange(run.ahead, false) || run.state != Run::State::asked) return;
  std::erase(ahead_, &run);
  wanted_.push_back(&run);
  run.deadline = Clock::now() + settings_.time;
}

// Null: there is none, or no memory for it.
std::shared_ptr<ChunkReader::Run> ChunkReader::next_run_to_fetch() {
  auto& queue = wanted_.empty() ? ahead_ : wanted_;
  if (queue.empty() || !make_room(*queue.front())) return nullptr;
  Run& run = *queue.front();
  queue.pop_front();
  run.state = Run::State::coming;
  ++coming_;
  resident_ += run.memory_taken();
  return *run.self;
}

// Those that somebody has waited for in vain. They leave the queue.
std::vector<std::shared_ptr<ChunkReader::Run>> ChunkReader::take_late_runs() {
  std::vector<std::shared_ptr<Run>> late;
  const auto now = Clock::now();
  for (Run* const run : wanted_) {
    if (run->deadline < now) late.push_back(*run->self);
  }
  std::erase_if(wanted_, [now](const Run* run) { return run->deadline < now; });
  return late;
}

// What was fetched ahead and not read yet makes room for what somebody waits for, but not for more of its kind.
bool ChunkReader::make_room(const Run& wanted) {
  evict_for(wanted.memory_taken(), false);
  if (!wanted.ahead) evict_for(wanted.memory_taken(), true);
  // If nothing is on its way, those who hold memory may wait for this run.
  if (!wanted.ahead && coming_ == 0) return true;
  return resident_ + wanted.memory_taken() <= settings_.memory;
}

void ChunkReader::evict_for(size_t bytes, bool also_unread) {
  const auto old = Clock::now() - kUnread;
  for (auto at = runs_.begin(); resident_ + bytes > settings_.memory && at != runs_.end();) {
    Run& run = **at++;
    const bool unread = run.ahead && run.came > old;
    if (run.state == Run::State::here && run.self->use_count() == 1 && (also_unread || !unread)) drop(run);
  }
}

void ChunkReader::drop(Run& run) {
  for (const Chunk& chunk : run.chunks) {
    const auto found = places_.find(key_of(chunk));
    if (found != places_.end() && found->second.run == &run) places_.erase(found);
  }
  if (run.state != Run::State::asked) resident_ -= run.memory_taken();
  runs_.erase(run.self);
}

void ChunkReader::serve() {
  io::MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return stop_ || !wanted_.empty() || !ahead_.empty(); });
    if (stop_) return;
    const auto run = next_run_to_fetch();
    const auto late = take_late_runs();
    if (!late.empty()) {
      lock.unlock();
      for (const auto& one : late)
        finish(one, Error(ETIMEDOUT, "other requests took all the time and memory there is"));
      lock.lock();
      if (run == nullptr) continue;
    }
    if (!run) {  // until who holds memory lets it go
      changed_.wait_for(mutex_, kPoll, [] { return false; });
      continue;
    }
    lock.unlock();
    finish(run, fetch(*run));
    lock.lock();
  }
}

Result<> ChunkReader::fetch(Run& run) {
  run.owned = memory_->take(run.bytes);
  run.buffer = run.owned.get(run.bytes);
  if (run.buffer.empty()) return Error(ENOMEM);
  io::RequestLimits limits;
  limits.deadline = run.deadline;
  limits.stop = settings_.stop != nullptr ? settings_.stop : &stop_;
  const ChunkRun chunks{run.chunks, run.first, run.bytes};
  return read_run(store_, run.file.step->key_of(run.file.entry), run.file.entry.path, chunks, run.buffer, limits);
}

void ChunkReader::finish(const std::shared_ptr<Run>& run, const Result<>& fetched) {
  std::vector<std::shared_ptr<Waiting>> ready;
  {
    const io::MutexLock lock(mutex_);
    const int failed = fetched ? 0 : fetched.error().errno_value();
    const bool may_be_one = (failed == EBADMSG || failed == ENOENT) && run->chunks.size() > 1;
    for (const auto& waiting : std::exchange(run->waiting, {})) {
      if (may_be_one) waiting->again = true;
      if (!fetched && !may_be_one) waiting->error = fetched.error();
      if (--waiting->missing == 0) ready.push_back(waiting);
    }
    if (run->state == Run::State::coming) --coming_;
    if (fetched) {
      run->state = Run::State::here;
      run->came = Clock::now();
      counts_.fetched += run->chunks.size();
      counts_.bytes_fetched += run->bytes;
    } else {
      ++counts_.failed;
      const bool stopped = fetched.error().errno_value() == ECANCELED;
      if (!stopped) last_failure_ = {fetched.error().message(), std::chrono::system_clock::now()};
      drop(*run);
    }
  }
  changed_.notify_all();
  for (const auto& waiting : ready) answer(waiting);
  if (!fetched || settings_.cache == nullptr) return;
  size_t at = 0;
  for (const Chunk& chunk : run->chunks) {
    settings_.cache->add(chunk.digest, run->buffer.subspan(at, chunk.length));
    at += chunk.length;
  }
}

void ChunkReader::answer(const std::shared_ptr<Waiting>& waiting) {
  if (waiting->error) return waiting->done(*waiting->error);
  if (std::exchange(waiting->again, false)) {
    waiting->alone = true;
    for (Waiting::Part& part : waiting->parts) part.run.reset();
    return begin(waiting);
  }
  Pieces pieces;
  for (Waiting::Part& part : waiting->parts) {
    if (part.run) {
      pieces.push_back({part.run, part.run->buffer.subspan(part.at + part.skip, part.take)});
      continue;
    }
    const auto cached = std::make_shared<CachedChunk>(memory_);
    if (cached->room.empty()) return waiting->done(Error(ENOMEM));
    if (!settings_.cache->read(part.chunk.digest, part.chunk.length, cached->room)) {
      waiting->ask_cache = false;
      for (Waiting::Part& one : waiting->parts) one.run.reset();
      return begin(waiting);
    }
    pieces.push_back({cached, cached->room.subspan(part.skip, part.take)});
  }
  for (Waiting::Part& part : waiting->parts) part.run.reset();
  waiting->done(std::move(pieces));
}

}  // namespace ckptfs::meta::remote
