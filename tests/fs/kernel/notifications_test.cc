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

// Like a kernel in which a program holds the folder's lock.
class HeldFolderTest : public NotificationsTest {
 protected:
  ~HeldFolderTest() override { let_go(); }
  void let_go() {
    const io::MutexLock lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  void tell(const Notifications::Change& change) {
    {
      const io::MutexLock lock(mutex_);
      if (change.inode == kFolder) changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return !held_; });
    }
    told(change);
  }

  io::CondVar changed_;
  bool held_ GUARDED_BY(mutex_) = true;
  Notifications held_up_{[this](const Notifications::Change& change) { tell(change); },
                         counters_,
                         [] {},
                         {.with_one = std::chrono::milliseconds(10), .at_the_end = std::chrono::milliseconds(10)}};
};

TEST_F(HeldFolderTest, OneFolderThatTheKernelWaitsForHoldsUpNoOther) {
  held_up_.start();
  for (const char* const name : {"a", "b"}) held_up_.name_changed(kFolder, name);
  for (meta::InodeNumber folder = kOther; folder < kOther + 200; ++folder) held_up_.name_changed(folder, "name");
  const auto end = std::chrono::steady_clock::now() + kPatience;
  const auto count = [this] {
    const io::MutexLock lock(mutex_);
    return told_.size();
  };
  while (count() < 200 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(count(), 200u);
  let_go();
  while (count() < 202 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(count(), 202u) << "the folder's own names are told at last";
  while (!held_up_.stop() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

TEST_F(HeldFolderTest, AThreadThatTheKernelKeepsIsLeftBehind) {
  held_up_.start();
  held_up_.name_changed(kFolder, "name");
  held_up_.name_changed(kOther, "name");
  const auto end = std::chrono::steady_clock::now() + kPatience;
  const auto is_told = [this] {
    const io::MutexLock lock(mutex_);
    return !told_.empty();
  };
  while (!is_told() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_FALSE(held_up_.stop());
  let_go();
  while (!held_up_.stop() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(held_up_.stop()) << "it has come back";
}

}  // namespace
}  // namespace ckptfs::fs
