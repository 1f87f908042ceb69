#include "fs/kernel/notifications.h"
#include "io/mutex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace ckptfs::fs {
namespace {

constexpr meta::InodeNumber kFolder = 7, kOther = 8;
constexpr std::chrono::seconds kPatience{30};

class NotificationsTest : public testing::Test {
 protected:
  void told(const Notifications::Change& change) {
    const io::MutexLock lock(mutex_);
    told_.push_back(change);
  }
  std::vector<Notifications::Change> all_told() {
    notifications_.wait_until_told(kPatience);
    const io::MutexLock lock(mutex_);
    return told_;
  }
  bool is_told_in_the_end(const Notifications::Change& change) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < end) {
      const auto told = all_told();
      if (std::find(told.begin(), told.end(), change) != told.end()) return true;
      std::this_thread::yield();
    }
    return false;
  }

  io::Mutex mutex_;
  std::vector<Notifications::Change> told_ GUARDED_BY(mutex_);
  Counters counters_;
  Notifications notifications_{[this](const Notifications::Change& change) { told(change); }, counters_};
};

TEST_F(NotificationsTest, NamesOfAHeldFolderWaitAndNothingWaitsForThem) {
  notifications_.start();
  notifications_.hold(kFolder);
  notifications_.name_changed(kFolder, "name");
  notifications_.attributes_changed(kFolder);
  notifications_.name_changed(kOther, "name");
  EXPECT_EQ(all_told(), (std::vector<Notifications::Change>{{kFolder, {}}, {kOther, "name"}}));
  notifications_.hold(kFolder);
  notifications_.release(kFolder);
  EXPECT_EQ(all_told().size(), 2u) << "one request is still unanswered";
  notifications_.release(kFolder);
  EXPECT_TRUE(is_told_in_the_end({kFolder, "name"}));
}

TEST_F(NotificationsTest, AReleaseMayOvertakeItsHold) {
  notifications_.start();
  notifications_.release(kFolder);
  notifications_.hold(kFolder);
  notifications_.name_changed(kFolder, "name");
  EXPECT_TRUE(is_told_in_the_end({kFolder, "name"}));
}

TEST_F(NotificationsTest, TheEndDropsWhatIsHeld) {
  notifications_.start();
  notifications_.hold(kFolder);
  notifications_.name_changed(kFolder, "name");
  notifications_.stop();
  EXPECT_TRUE(all_told().empty());
}

}  // namespace
}  // namespace ckptfs::fs
