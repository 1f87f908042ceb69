#include "io/not_inherited.h"

#include <pthread.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "io/mutex.h"

namespace ckptfs::io {
namespace {

struct Registry {
  Mutex mutex;
  std::multiset<int> descriptors GUARDED_BY(mutex);
};

// It is never destroyed, because a fork may come while the program ends.
Registry& registry() {
  static Registry* const made = [] {
    auto* const fresh = new Registry;
    ::pthread_atfork([]() ACQUIRE(registry().mutex) { registry().mutex.lock(); },
                     []() RELEASE(registry().mutex) { registry().mutex.unlock(); },
                     []() RELEASE(registry().mutex) {
                       for (const int descriptor : registry().descriptors) ::close(descriptor);
                       registry().descriptors.clear();
                       registry().mutex.unlock();
                     });
    return fresh;
  }();
  return *made;
}

}  // namespace

NotInherited::NotInherited(std::vector<int> descriptors) : descriptors_(std::move(descriptors)) {
  std::erase_if(descriptors_, [](int descriptor) { return descriptor < 0; });
  const MutexLock lock(registry().mutex);
  registry().descriptors.insert(descriptors_.begin(), descriptors_.end());
}

NotInherited::NotInherited(NotInherited&& other) noexcept : descriptors_(std::exchange(other.descriptors_, {})) {}

NotInherited::~NotInherited() {
  const MutexLock lock(registry().mutex);
  for (const int descriptor : descriptors_) {
    const auto at = registry().descriptors.find(descriptor);
    if (at != registry().descriptors.end()) registry().descriptors.erase(at);
  }
}

}  // namespace ckptfs::io
