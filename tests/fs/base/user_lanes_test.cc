// Work for users: a few at a time, and nobody's waits for another's.
#include "fs/base/user_lanes.h"
#include "io/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

namespace ckptfs::fs {
namespace {

// Blocks work until the test opens it.
class Barrier {
 public:
  void wait() {
    io::MutexLock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return open_; });
  }
  void wait_for(unsigned waiting) {
    io::MutexLock lock(mutex_);
    changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return waiting_ >= waiting; });
  }
  void open() {
    const io::MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  unsigned waiting() {
    const io::MutexLock lock(mutex_);
    return waiting_;
  }

 private:
  io::Mutex mutex_;
  io::CondVar changed_;
  unsigned waiting_ GUARDED_BY(mutex_) = 0;
  bool open_ GUARDED_BY(mutex_) = false;
};

TEST(UserLanesTest, NobodyWaitsForAnothersWork) {
  Tasks tasks;
  UserLanes lanes(tasks);
  Barrier barrier, other;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(lanes.start(1, [&] { barrier.wait(); }));
  barrier.wait_for(UserLanes::kAtOnce);
  ASSERT_TRUE(lanes.start(2, [&] { other.wait(); }));
  other.wait_for(1);
  EXPECT_EQ(barrier.waiting(), UserLanes::kAtOnce) << "a user has more than their share";
  other.open();
  barrier.open();
  tasks.wait();
  EXPECT_EQ(barrier.waiting(), 100u);
}

TEST(UserLanesTest, WorkThatWorkStartsIsWaitedForToo) {
  Tasks tasks;
  UserLanes lanes(tasks);
  std::atomic<int> done{0};
  std::function<void(int)> work = [&](int left) {
    ++done;
    if (left == 0) return;
    ASSERT_TRUE(lanes.start(static_cast<uint32_t>(left % 3), [&work, left] { work(left - 1); }));
  };
  ASSERT_TRUE(lanes.start(0, [&] { work(200); }));
  tasks.wait();
  EXPECT_EQ(done, 201);
}

}  // namespace
}  // namespace ckptfs::fs
