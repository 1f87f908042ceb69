#include "gpu/twin.h"

#include <sys/mman.h>

#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <system_error>
#include <thread>

#include "io/mutex.h"

namespace ckptfs::gpu {
namespace {

// Returns the last of `ranges` that begins at or before the address, or the end.
template <class Ranges>
auto range_at(Ranges& ranges, const std::byte* address) {
  auto after = ranges.upper_bound(address);
  return after == ranges.begin() ? ranges.end() : std::prev(after);
}

}  // namespace

// Counts how often the event was recorded, and which of these records are done. A task keeps a share of its ownership.
struct Twin::Milestone {
  io::Mutex mutex;
  io::CondVar reached;
  uint64_t recorded GUARDED_BY(mutex) = 0;
  uint64_t done GUARDED_BY(mutex) = 0;

  void reach(uint64_t which) {
    const io::MutexLock lock(mutex);
    done = std::max(done, which);
    // with the lock held: the waiter may own this, and destroy it as soon as it has seen the change
    reached.notify_all();
  }
  void wait(uint64_t which) {
    const io::MutexLock lock(mutex);
    reached.wait(mutex, [&]() REQUIRES(mutex) { return done >= which; });
  }
};

namespace {

// An Event is the address of a shared_ptr, because a task may outlive an event that is destroyed.
template <class T>
std::shared_ptr<T>& shared(Event event) {
  return *static_cast<std::shared_ptr<T>*>(event);
}

}  // namespace

// A stream: runs tasks in order, on a thread that the first task starts.
class Twin::Worker {
 public:
  explicit Worker(std::chrono::microseconds lateness) : lateness_(lateness) {}
  ~Worker() {
    {
      const io::MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  Result<> add(std::function<void()> task) {
    {
      const io::MutexLock lock(mutex_);
      try {
        if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
      } catch (const std::system_error& e) {
        return Error(e.code().value(), std::string("a thread for a stream of the twin: ") + e.what());
      }
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
    return success();
  }

  void be_late() {
    if (lateness_.count() == 0) return;
    std::uniform_int_distribution<int64_t> share(0, lateness_.count());
    std::this_thread::sleep_for(std::chrono::microseconds(share(random_)));
  }

 private:
  // Tasks that were added are run even if the stream is destroyed.
  void work() {
    io::MutexLock lock(mutex_);
    for (;;) {
      changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const std::chrono::microseconds lateness_;
  std::minstd_rand random_;  // used by its thread only
  io::Mutex mutex_;
  io::CondVar changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  bool ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_);  // until the end
};

Twin::Twin(std::chrono::microseconds lateness)
    : lateness_(lateness), default_stream_(std::make_unique<Worker>(lateness)) {}

Twin::~Twin() {
  default_stream_.reset();  // its remaining tasks need the memory
  for (const auto& [address, allocation] : allocations_) {
    ::munmap(const_cast<std::byte*>(address), allocation.size);
    ::munmap(allocation.bytes, allocation.size);
  }
}

Result<MemoryKind> Twin::kind_of(const std::byte* address) {
  const io::MutexLock lock(mutex_);
  const auto at = range_at(allocations_, address);
  const bool known = at != allocations_.end() && address < at->first + at->second.size;
  return known ? MemoryKind::device : MemoryKind::host;
}

Result<> Twin::pin(std::span<std::byte> memory) {
  const io::MutexLock lock(mutex_);
  pinned_[memory.data()] = memory.size();
  return success();
}

void Twin::unpin(std::span<std::byte> memory) {
  const io::MutexLock lock(mutex_);
  pinned_.erase(memory.data());
}

Result<> Twin::check_pinned(std::span<const std::byte> memory) {
  const io::MutexLock lock(mutex_);
  const auto at = range_at(pinned_, memory.data());
  if (at != pinned_.end() && memory.data() + memory.size() <= at->first + at->second) return success();
  return Error(EINVAL, "the twin copies only to and from memory that was pinned");
}

Result<std::byte*> Twin::bytes_at(const std::byte* device_memory, size_t size) {
  const io::MutexLock lock(mutex_);
  const auto at = range_at(allocations_, device_memory);
  if (at == allocations_.end() || device_memory + size > at->first + at->second.size) {
    return Error(EINVAL, "no memory of the twin, or beyond the end of it");
  }
  return at->second.bytes + (device_memory - at->first);
}

Twin::Worker& Twin::worker(Stream stream) {
  return stream == nullptr ? *default_stream_ : *static_cast<Worker*>(stream);
}

Result<Stream> Twin::make_stream() { return static_cast<Stream>(new Worker(lateness_)); }

void Twin::destroy_stream(Stream stream) { delete static_cast<Worker*>(stream); }

Result<> Twin::copy_in(std::byte* device_memory, std::span<const std::byte> staging, Stream stream) {
  TRY(check_pinned(staging));
  TRY_ASSIGN(std::byte* const bytes, bytes_at(device_memory, staging.size()));
  Worker& on = worker(stream);
  return on.add([&on, bytes, staging] {
    on.be_late();
    std::memcpy(bytes, staging.data(), staging.size());
  });
}

Result<> Twin::copy_out(std::span<std::byte> staging, const std::byte* device_memory, Stream stream) {
  TRY(check_pinned(staging));
  TRY_ASSIGN(const std::byte* const bytes, bytes_at(device_memory, staging.size()));
  Worker& on = worker(stream);
  return on.add([&on, bytes, staging] {
    on.be_late();
    std::memcpy(staging.data(), bytes, staging.size());
  });
}

Result<> Twin::drain(Stream stream) {
  Milestone end;
  TRY(worker(stream).add([&end] { end.reach(1); }));
  end.wait(1);
  return success();
}

Result<Event> Twin::make_event() { return new std::shared_ptr<Milestone>(std::make_shared<Milestone>()); }

void Twin::destroy_event(Event event) { delete &shared<Milestone>(event); }

Result<> Twin::record(Event event, Stream stream) {
  std::shared_ptr<Milestone> milestone = shared<Milestone>(event);
  uint64_t which = 0;
  {
    const io::MutexLock lock(milestone->mutex);
    which = ++milestone->recorded;
  }
  return worker(stream).add([milestone, which] { milestone->reach(which); });
}

Result<bool> Twin::is_done(Event event) {
  Milestone& milestone = *shared<Milestone>(event);
  const io::MutexLock lock(milestone.mutex);
  return milestone.done == milestone.recorded;
}

Result<> Twin::wait(Event event) {
  Milestone& milestone = *shared<Milestone>(event);
  uint64_t which = 0;
  {
    const io::MutexLock lock(milestone.mutex);
    which = milestone.recorded;
  }
  milestone.wait(which);
  return success();
}

Result<> Twin::order(Stream stream, Event event) {
  std::shared_ptr<Milestone> milestone = shared<Milestone>(event);
  uint64_t which = 0;
  {
    const io::MutexLock lock(milestone->mutex);
    which = milestone->recorded;
  }
  return worker(stream).add([milestone, which] { milestone->wait(which); });
}

Result<std::byte*> Twin::allocate(size_t size) {
  const io::Fd file(::memfd_create("ckptfs-twin", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(size)) != 0) return last_error("memory for the twin");
  void* const bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (bytes == MAP_FAILED) return last_error("memory for the twin");
  void* const address = ::mmap(nullptr, size, PROT_NONE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    const Error error = last_error("addresses for the twin");
    ::munmap(bytes, size);
    return error;
  }
  const io::MutexLock lock(mutex_);
  allocations_[static_cast<std::byte*>(address)] = {size, static_cast<std::byte*>(bytes)};
  return static_cast<std::byte*>(address);
}

Result<> Twin::release(std::byte* address) {
  const io::MutexLock lock(mutex_);
  const auto at = allocations_.find(address);
  if (at == allocations_.end()) return Error(EINVAL, "no memory of the twin begins there");
  ::munmap(address, at->second.size);
  ::munmap(at->second.bytes, at->second.size);
  allocations_.erase(at);
  return success();
}

}  // namespace ckptfs::gpu
