#include "fs/kernel/notifications.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "io/mutex.h"

namespace ckptfs::fs {

namespace {

using Clock = std::chrono::steady_clock;

// A next request may have waited for the folder's lock. Within this time it reaches the daemon, and holds the folder.
constexpr std::chrono::milliseconds kUntilNextRequest{20};
// One user can hold as many folders as he may run threads. Beyond this all wait for one of them.
constexpr unsigned kMostTellers = 64;

struct Held {
  int requests = 0;
  Clock::time_point until;  // where there are none any more
};

}  // namespace

struct Notifications::Shared : std::enable_shared_from_this<Shared> {
  Shared(std::function<void(const Change&)> tell_kernel, Counters& counted, std::function<void()> prepare_thread,
         Patience how_patient)
      : tell(std::move(tell_kernel)), counters(counted), prepare(std::move(prepare_thread)), patience(how_patient) {}

  void begin_thread() REQUIRES(mutex);
  void run(unsigned me);
  // Returns whether this thread tells from now on.
  bool wait_as_reserve(unsigned me) REQUIRES(mutex);
  bool tell_one() REQUIRES(mutex);
  bool is_waiting(const Change& change) const REQUIRES(mutex);
  bool may_be_told(const Change& change) const REQUIRES(mutex);
  bool has_change_to_tell() const REQUIRES(mutex);
  void wait_for_change() REQUIRES(mutex);

  const std::function<void(const Change&)> tell;
  Counters& counters;  // not after the end
  const std::function<void()> prepare;
  const Patience patience;
  io::Mutex mutex;
  io::CondVar wake, wake_reserve, ended;
  std::deque<Change> queue GUARDED_BY(mutex);
  std::set<Change> queued GUARDED_BY(mutex);                           // what `queue` holds
  std::unordered_map<meta::InodeNumber, Held> held GUARDED_BY(mutex);  // folders
  std::set<meta::InodeNumber> in_kernel GUARDED_BY(mutex);             // folders of which a thread tells a name
  bool running GUARDED_BY(mutex) = false;
  bool reserve_sleeps GUARDED_BY(mutex) = false;  // until the teller is in the kernel
  unsigned threads GUARDED_BY(mutex) = 0;
  unsigned last_thread GUARDED_BY(mutex) = 0;                        // the number of the one begun last
  unsigned teller GUARDED_BY(mutex) = 1;                             // the number of the thread that tells
  std::optional<Clock::time_point> telling_since GUARDED_BY(mutex);  // the teller; none: it is not in the kernel
};

Notifications::Notifications(std::function<void(const Change&)> tell, Counters& counters)
    : Notifications(
          std::move(tell), counters, [] {}, Patience()) {}

Notifications::Notifications(std::function<void(const Change&)> tell, Counters& counters, std::function<void()> prepare,
                             Patience patience)
    : shared_(std::make_shared<Shared>(std::move(tell), counters, std::move(prepare), patience)) {}

Notifications::~Notifications() { stop(); }

void Notifications::start() {
  Shared& all = *shared_;
  const io::MutexLock lock(all.mutex);
  all.running = true;
  all.begin_thread();
  all.begin_thread();
}

bool Notifications::stop() {
  Shared& all = *shared_;
  const io::MutexLock lock(all.mutex);
  const bool was_running = std::exchange(all.running, false);
  all.wake.notify_all();
  all.wake_reserve.notify_all();
  const std::chrono::milliseconds patience = was_running ? all.patience.at_the_end : std::chrono::milliseconds(0);
  return all.ended.wait_for(all.mutex, patience, [&all]() REQUIRES(all.mutex) { return all.threads == 0; });
}

void Notifications::queue(Change change) {
  Shared& all = *shared_;
  {
    const io::MutexLock lock(all.mutex);
    if (!all.running || !all.queued.insert(change).second) return;
    all.queue.push_back(std::move(change));
  }
  all.wake.notify_all();
}

void Notifications::wait_until_told(std::chrono::milliseconds time) {
  Shared& all = *shared_;
  const io::MutexLock lock(all.mutex);
  all.wake.wait_for(all.mutex, time, [&all]() REQUIRES(all.mutex) {
    return !all.running || (!all.telling_since && !all.has_change_to_tell());
  });
}

void Notifications::hold(meta::InodeNumber folder) {
  Shared& all = *shared_;
  const io::MutexLock lock(all.mutex);
  if (++all.held[folder].requests == 0) all.held.erase(folder);
}

void Notifications::release(meta::InodeNumber folder) {
  Shared& all = *shared_;
  {
    const io::MutexLock lock(all.mutex);
    Held& held = all.held[folder];
    --held.requests;
    held.until = Clock::now() + kUntilNextRequest;
  }
  all.wake.notify_all();
}

// Does it wait for something that may take long?
bool Notifications::Shared::is_waiting(const Change& change) const {
  if (change.name.empty()) return false;
  if (in_kernel.contains(change.inode)) return true;
  const auto found = held.find(change.inode);
  return found != held.end() && found->second.requests > 0;
}

bool Notifications::Shared::may_be_told(const Change& change) const {
  if (is_waiting(change)) return false;
  const auto found = change.name.empty() ? held.end() : held.find(change.inode);
  return found == held.end() || (found->second.requests == 0 && found->second.until <= Clock::now());
}

// Is there a change that may be told now or in a moment?
bool Notifications::Shared::has_change_to_tell() const {
  return !std::ranges::all_of(queue, [this](const Change& change) REQUIRES(mutex) { return is_waiting(change); });
}

// Waits until a change may be told, or something else has happened.
void Notifications::Shared::wait_for_change() {
  std::erase_if(held, [](const auto& one) { return one.second.requests == 0 && one.second.until <= Clock::now(); });
  const auto free = std::ranges::find_if(held, [](const auto& one) { return one.second.requests == 0; });
  if (free == held.end()) {
    wake.wait(mutex);
  } else {
    wake.wait_until(mutex, free->second.until);
  }
}

// If there can be no further thread, there is no reserve.
void Notifications::Shared::begin_thread() {
  if (threads == kMostTellers) return;
  const unsigned number = last_thread + 1;
  try {
    std::thread([self = shared_from_this(), number] { self->run(number); }).detach();
  } catch (const std::system_error&) {
    return;
  }
  last_thread = number;
  ++threads;
}

bool Notifications::Shared::wait_as_reserve(unsigned me) {
  if (!telling_since) {
    reserve_sleeps = true;
    wake_reserve.wait(mutex);
    reserve_sleeps = false;
    return false;
  }
  const auto until = *telling_since + patience.with_one;
  if (Clock::now() < until) {
    wake_reserve.wait_until(mutex, until);
    return false;
  }
  teller = me;
  telling_since.reset();
  return true;
}

// Tells the first change that may be told. Returns false if there is none.
bool Notifications::Shared::tell_one() {
  const auto next =
      std::ranges::find_if(queue, [this](const Change& change) REQUIRES(mutex) { return may_be_told(change); });
  if (next == queue.end()) return false;
  const Change change = std::move(*next);
  queue.erase(next);
  queued.erase(change);
  if (!change.name.empty()) in_kernel.insert(change.inode);
  telling_since = Clock::now();
  if (reserve_sleeps) wake_reserve.notify_one();
  mutex.unlock();
  tell(change);
  mutex.lock();
  if (!change.name.empty()) in_kernel.erase(change.inode);
  if (running) add(counters.notifications);
  return true;
}

// Writes nothing to the log: the log's descriptor is not this thread's (KernelChannel::leave_descriptors).
void Notifications::Shared::run(unsigned me) {
  prepare();
  const io::MutexLock lock(mutex);
  while (running && teller <= me) {  // a higher number has taken over from a lower one
    if (teller != me) {
      if (wait_as_reserve(me)) begin_thread();
      continue;
    }
    if (!tell_one()) {
      wait_for_change();
      continue;
    }
    if (teller == me) telling_since.reset();
    if (teller == me && last_thread == me) begin_thread();  // there could be no reserve before
    if (teller != me || !has_change_to_tell()) wake.notify_all();
  }
  --threads;
  ended.notify_all();
}

}  // namespace ckptfs::fs
