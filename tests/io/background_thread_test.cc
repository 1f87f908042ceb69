#include "io/background_thread.h"

#include <gtest/gtest.h>
#include <linux/ioprio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <semaphore>

namespace ckptfs::io {
namespace {

constexpr std::chrono::hours kForEver{24};

TEST(BackgroundThreadTest, AWakeEndsAWait) {
  BackgroundThread thread;
  std::binary_semaphore returned{0};
  thread.start([&] {
    while (thread.wait()) returned.release();
  });
  for (int i = 0; i < 100; ++i) {
    thread.wake();
    returned.acquire();
  }
}

TEST(BackgroundThreadTest, AWakeBeforeTheWaitCounts) {
  BackgroundThread thread;
  std::binary_semaphore woken{0}, returned{0};
  thread.start([&] {
    woken.acquire();
    EXPECT_TRUE(thread.wait_for(kForEver));
    returned.release();
  });
  thread.wake();
  woken.release();
  returned.acquire();
}

TEST(BackgroundThreadTest, AWakeEndsOneWaitOnly) {
  BackgroundThread thread;
  std::binary_semaphore returned{0};
  thread.wake();
  thread.start([&] {
    EXPECT_TRUE(thread.wait());
    returned.release();
    EXPECT_FALSE(thread.wait());
  });
  returned.acquire();
  thread.stop();
}

TEST(BackgroundThreadTest, TheTimeEndsAWait) {
  BackgroundThread thread;
  std::binary_semaphore returned{0};
  thread.start([&] {
    EXPECT_TRUE(thread.wait_for(std::chrono::milliseconds(1)));
    EXPECT_TRUE(thread.wait_for(std::chrono::nanoseconds(0)));
    returned.release();
  });
  returned.acquire();
}

TEST(BackgroundThreadTest, TheStopEndsAWait) {
  BackgroundThread thread;
  int stops = 0;
  for (const bool timed : {false, true}) {
    std::binary_semaphore started{0};
    thread.start([&] {
      EXPECT_FALSE(thread.is_stopping());
      started.release();
      if (timed ? !thread.wait_for(kForEver) : !thread.wait()) ++stops;
      EXPECT_TRUE(thread.is_stopping());
      EXPECT_FALSE(thread.wait());
    });
    started.acquire();
    thread.stop();
  }
  EXPECT_EQ(stops, 2);
}

TEST(BackgroundThreadTest, TheDestructorWaitsForTheLastRound) {
  bool last_round = false;
  std::optional<BackgroundThread> thread(std::in_place);
  thread->start([&last_round, &thread = *thread] {
    while (thread.wait()) {
    }
    last_round = true;
  });
  thread.reset();
  EXPECT_TRUE(last_round);
}

TEST(BackgroundThreadTest, AStopWithoutAThreadDoesNothing) {
  BackgroundThread thread;
  thread.stop();
  thread.start([] {});
  thread.stop();
  thread.stop();
}

TEST(BackgroundThreadTest, LowPriorityIsTheThreadsAlone) {
  const auto nice = [] { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); };
  const int before = nice();
  BackgroundThread thread;
  int in_thread = 0;
  long io_class = 0;
  thread.start(
      [&] {
        in_thread = nice();
        io_class = IOPRIO_PRIO_CLASS(::syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0));
      },
      BackgroundThread::Priority::low);
  thread.stop();
  EXPECT_GE(in_thread, 10);
  EXPECT_EQ(io_class, IOPRIO_CLASS_IDLE);
  EXPECT_EQ(nice(), before);
}

}  // namespace
}  // namespace ckptfs::io
