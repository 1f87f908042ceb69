// Mutexes that clang's thread-safety analysis knows. With it the compiler checks who holds which lock; it runs in every
// build with clang (-Wthread-safety), and costs nothing. The attributes and what they mean:
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
//
// Why a class of our own: the analysis follows only types that are annotated, and std::mutex of libstdc++ is not. Each
// class here wraps the one of std that it is named after, without a cost.
//
//   GUARDED_BY(mutex)       a field: it is read and written only while `mutex` is held
//   PT_GUARDED_BY(mutex)    a pointer: likewise what it points to
//   REQUIRES(mutex)         a function: its caller holds `mutex`
//   EXCLUDES(mutex)         a function: its caller does not hold `mutex`, since the function takes it
//   ACQUIRE, RELEASE, ...   a function that takes or gives up a lock, as those below
//
// The field of a nested struct names the mutex of the class around it as GUARDED_BY(&Outer::mutex_). A lambda is a
// function of its own: where it touches a guarded field, it is written as []() REQUIRES(mutex_) { ... }.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define CKPTFS_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define CKPTFS_THREAD_ATTRIBUTE(attribute)  // gcc knows none of them
#endif
#define CAPABILITY(what) CKPTFS_THREAD_ATTRIBUTE(capability(what))
#define SCOPED_CAPABILITY CKPTFS_THREAD_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(mutex) CKPTFS_THREAD_ATTRIBUTE(guarded_by(mutex))
#define PT_GUARDED_BY(mutex) CKPTFS_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
#define REQUIRES(...) CKPTFS_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) CKPTFS_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) CKPTFS_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) CKPTFS_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(mutex) CKPTFS_THREAD_ATTRIBUTE(assert_capability(mutex))
#define RETURN_CAPABILITY(mutex) CKPTFS_THREAD_ATTRIBUTE(lock_returned(mutex))
#define NO_THREAD_SAFETY_ANALYSIS CKPTFS_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace ckptfs::io {

class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  // Tells the analysis that the calling thread holds this mutex. For locks that the analysis cannot follow.
  void assert_held() const ASSERT_CAPABILITY(this) {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex as long as it lives, but for what lies between unlock() and lock().
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() RELEASE() {
    if (held_) mutex_.unlock();
  }

  void unlock() RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

class CondVar {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();  // the caller goes on to hold the mutex
  }
  // Returns false when the time was over.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point time) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, time);
    lock.release();
    return status == std::cv_status::no_timeout;
  }

  // Waits until `condition` holds, a lambda that requires the mutex. Without analysis: it cannot know that the mutex
  // which the condition requires is the one that is held here.
  template <typename Condition>
  void wait(Mutex& mutex, Condition condition) REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    while (!condition()) wait(mutex);
  }
  // Returns whether it holds; false: the time was over.
  template <typename Condition>
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds time, Condition condition)
      REQUIRES(mutex) NO_THREAD_SAFETY_ANALYSIS {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!condition()) {
      if (!wait_until(mutex, end)) return condition();
    }
    return true;
  }

  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace ckptfs::io
