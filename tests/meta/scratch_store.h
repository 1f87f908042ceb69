// A store on a real XFS image. Each test program makes the image once, and each test has its own folder on it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "io/image.h"
#include "io/lease.h"
#include "io/mutex.h"
#include "meta/care/fsck.h"
#include "meta/steps/save.h"
#include "meta/steps/seal.h"
#include "meta/steps/source.h"
#include "meta/steps/steps.h"
#include "meta/store/store.h"

namespace ckptfs::meta {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// One of a run's swap files.
constexpr const char* kLive = "/zero_stage_3/optimizer/rank0/0_2.tensor.swp";

// For what paces itself by waiting: it need not.
inline bool without_pause(std::chrono::nanoseconds /*wanted*/) { return true; }

// The image that all tests of the program share. It is unmounted and deleted at the end.
class ImageEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    io::ignore_lease_signals();
    char folder[] = "/dev/shm/ckptfs-meta-XXXXXX";
    if (::geteuid() != 0 || ::mkdtemp(folder) == nullptr) {
      reason_ = "needs root and /dev/shm";
      return;
    }
    root_ = folder;
    io::ImageOptions options;
    options.size = uint64_t{1} << 30;
    options.sparse = true;
    auto image = io::mount_image(root_, options);
    if (!image) {
      reason_ = "no XFS image: " + image.error().message();
      return;
    }
    image_ = std::make_unique<io::MountedImage>(std::move(image).value());
  }
  void TearDown() override {
    if (image_) {
      const auto unmounted = io::unmount_image(*image_);
      EXPECT_TRUE(unmounted) << unmounted.error().message();
    }
    if (!root_.empty()) std::filesystem::remove_all(root_);
  }
  const std::string& reason() const { return reason_; }
  std::string folder() const { return image_ ? image_->folder : ""; }

 private:
  std::string root_;
  std::string reason_;
  std::unique_ptr<io::MountedImage> image_;
};

ImageEnvironment& image_environment();

// Open files as a test sets them.
class StubOpenFiles : public OpenFiles {
 public:
  std::set<InodeNumber> writers, readers;
  std::vector<std::pair<InodeNumber, std::string>> invalidated;
  std::function<void()> meanwhile;  // called when a save writes back open files: after its plan, before its gate
  mutable io::Mutex mutex;          // a save asks from several threads
  mutable std::function<void()> asked_for_writers;  // called when somebody asks who writes
  mutable std::function<void()> asked;              // called once it is decided what open_at_all() returns

  void drop_view_blocks() override {}
  bool open_for_writing(InodeNumber inode) const override {
    const io::MutexLock lock(mutex);
    const bool open = writers.contains(inode);
    if (asked_for_writers) std::exchange(asked_for_writers, nullptr)();
    return open;
  }
  bool writing() const override { return !writers.empty(); }
  bool open_at_all(InodeNumber inode) const override {
    const bool open = writers.contains(inode) || readers.contains(inode);
    if (asked) std::exchange(asked, nullptr)();
    return open;
  }
  Result<> write_back(const std::vector<InodeNumber>&) override {
    if (meanwhile) meanwhile();
    return success();
  }
  void invalidate(InodeNumber) override {}
  void invalidate_name(InodeNumber folder, const std::string& name) override { invalidated.emplace_back(folder, name); }
};

class ScratchStore : public testing::Test {
 protected:
  void SetUp() override {
    if (!image_environment().reason().empty()) GTEST_SKIP() << image_environment().reason();
    folder_ = image_environment().folder() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    open();
  }
  void TearDown() override {
    if (store_) close();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  static Caller user() { return {1000, 1000, ::getpid()}; }

  void open() {
    auto store = Store::open({folder_, 1000, 1000, true});
    ASSERT_TRUE(store) << store.error().message();
    store_ = std::move(store).value();
    store_->set_open_files(&open_files_);
  }
  void close() {
    const auto closed = store_->close();
    ASSERT_TRUE(closed) << closed.error().message();
    store_.reset();
  }
  void reopen() {
    close();
    open();
  }
  // Leaves the store as after `kill -9`: the destructors run, but nothing is synced, and the store counts as not
  // unmounted.
  void crash() { store_.reset(); }
  Tree& tree() { return store_->tree(); }

  InodeNumber at(const std::string& path) {
    const auto number = tree().resolve(path);
    EXPECT_TRUE(number) << number.error().message();
    return number ? number.value() : 0;
  }
  InodeNumber make_folder(const std::string& path) {
    const auto made = tree().make(at(parent_of(path)), name_of(path), {S_IFDIR | 0755, 0, {}}, user());
    EXPECT_TRUE(made) << path << ": " << made.error().message();
    return made ? made.value().stat.st_ino : 0;
  }
  InodeNumber make_file(const std::string& path, const std::string& content = {}) {
    const auto made = tree().make(at(parent_of(path)), name_of(path), {S_IFREG | 0644, 0, {}}, user());
    EXPECT_TRUE(made) << path << ": " << made.error().message();
    if (made && !content.empty()) write(path, content);
    return made ? made.value().stat.st_ino : 0;
  }
  // Does what a writer does: opens for writing, writes, syncs, closes.
  void write(const std::string& path, const std::string& content, off_t offset = 0) {
    const InodeNumber file = at(path);
    const auto prepared = tree().prepare_writing(file, user(), 0);
    ASSERT_TRUE(prepared) << prepared.error().message();
    {
      const auto fd = tree().open_blob(file, O_WRONLY);
      ASSERT_TRUE(fd) << fd.error().message();
      const auto written = io::write_full(fd.value().get(), std::as_bytes(std::span(content)), offset);
      ASSERT_TRUE(written) << written.error().message();
      ASSERT_TRUE(io::fdatasync_fd(fd.value().get()));
    }
    tree().finished_writing(file);
  }
  std::string read(const std::string& path) {
    const auto fd = tree().open_blob(at(path), O_RDONLY);
    if (!fd) return "(" + fd.error().message() + ")";
    std::string content(64 << 20, '\0');
    const auto size = io::read_full(fd.value().get(), std::as_writable_bytes(std::span(content)), 0);
    content.resize(size ? size.value() : 0);
    return content;
  }
  void remove(const std::string& path) {
    const auto dropped = tree().unlink(at(parent_of(path)), name_of(path));
    ASSERT_TRUE(dropped) << dropped.error().message();
    if (dropped.value().last_name) tree().reap(dropped.value().inode);
  }
  Result<SaveResult> save(const std::string& tag) { return meta::save(*store_, {at("/steps"), tag, user()}); }

  // Makes the swap files of two ranks of a small model.
  void make_swap_state() {
    make_folder("/zero_stage_3");
    make_folder("/zero_stage_3/optimizer");
    make_folder("/zero_stage_3/bfloat16params");
    for (const std::string rank : {"rank0", "rank1"}) {
      make_folder("/zero_stage_3/optimizer/" + rank);
      make_folder("/zero_stage_3/bfloat16params/" + rank);
      for (const std::string name : {"0_2", "exp_avg-0_2", "exp_avg_sq-0_2", "0_2_gradient_0_1024"}) {
        make_file("/zero_stage_3/optimizer/" + rank + "/" + name + ".tensor.swp", std::string(1 << 20, name[0]) + rank);
      }
      make_file("/zero_stage_3/bfloat16params/" + rank + "/7_param.tensor.swp", std::string(1 << 20, 'p') + rank);
    }
  }
  // Counts the blobs with content; spare blobs are empty.
  size_t blob_files() const {
    const auto list = store_->blobs().list();
    if (!list) return 0;
    return static_cast<size_t>(std::count_if(list.value().begin(), list.value().end(), [this](BlobNumber blob) {
      const auto st = store_->blobs().stat(blob);
      return st && st.value().st_size > 0;
    }));
  }
  // Waits until there are as many spare blobs. Returns false if it takes too long.
  bool spares_become(size_t count) const {
    for (int i = 0; i < 1000 && store_->spares().ready() != count; ++i) ::usleep(10000);
    return store_->spares().ready() == count;
  }
  // Makes a file beside the store, so that only so many bytes above the reserve stay free. Returns its path.
  std::string leave_free(uint64_t bytes) const {
    std::string filler = folder_ + "/filler";
    const SpaceReport space = store_->space();
    const auto fd = io::open_at(AT_FDCWD, filler, O_RDWR | O_CREAT);
    EXPECT_TRUE(fd);
    EXPECT_EQ(::posix_fallocate(fd.value().get(), 0, static_cast<off_t>(space.raw_free - space.reserve - bytes)), 0);
    return filler;
  }
  void expect_clean_fsck() {
    if (store_) close();
    const auto report = fsck(folder_);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(report.value().problems, std::vector<std::string>());
    EXPECT_EQ(report.value().orphans.size(), 0U);
  }

  static std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
  static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  std::string folder_;
  StubOpenFiles open_files_;
  std::unique_ptr<Store> store_;
};

// With the live state of two ranks.
class ScratchSwapState : public ScratchStore {
 protected:
  void SetUp() override {
    ScratchStore::SetUp();
    if (!IsSkipped()) make_swap_state();
  }
};

}  // namespace ckptfs::meta
