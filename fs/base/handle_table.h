// The handles that the kernel holds: what `fh` in its requests points to. A handle lives from the reply to OPEN or
// OPENDIR until its RELEASE; the kernel names it in no request after that. Those whose RELEASE never came (the
// connection was cut) are ended with the table.
//
// Thread safety: all of it. Lock: mutex_ (a leaf).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "io/mutex.h"

namespace ckptfs::fs {

template <class T>
class Handles {
 public:
  // Keeps it; the number for `fh`.
  uint64_t add(std::unique_ptr<T> handle) {
    const uint64_t number = reinterpret_cast<uint64_t>(handle.get());
    const io::MutexLock lock(mutex_);
    handles_.emplace(number, std::move(handle));
    return number;
  }
  static T& get(uint64_t number) {
    return *reinterpret_cast<T*>(number);  // NOLINT(performance-no-int-to-ptr): `fh` is a number
  }
  // Out of the table, to be ended by the caller.
  std::unique_ptr<T> take(uint64_t number) {
    const io::MutexLock lock(mutex_);
    auto node = handles_.extract(number);
    return node.empty() ? nullptr : std::move(node.mapped());
  }
  void clear() {
    std::unordered_map<uint64_t, std::unique_ptr<T>> handles;
    const io::MutexLock lock(mutex_);
    handles.swap(handles_);
  }
  template <class Predicate>
  bool any(const Predicate& predicate) const {
    const io::MutexLock lock(mutex_);
    return std::any_of(handles_.begin(), handles_.end(), [&](const auto& one) { return predicate(*one.second); });
  }
  size_t count() const {
    const io::MutexLock lock(mutex_);
    return handles_.size();
  }

 private:
  mutable io::Mutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<T>> handles_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::fs
