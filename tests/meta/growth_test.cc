// How many records of the index an operation reads must be proportional to what it is about.
#include <rocksdb/perf_context.h>

#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

class GrowthTest : public ScratchStore {
 protected:
  // Returns how many records this thread iterates over during `work`.
  static uint64_t scanned_by(const std::function<void()>& work) {
    rocksdb::get_perf_context()->Reset();
    work();
    return rocksdb::get_perf_context()->internal_key_skipped_count;
  }

  void make_step(const std::string& path, int files) {
    make_folder(path);
    for (int i = 0; i < files; ++i) make_file(path + "/model-" + std::to_string(1000 + i) + ".safetensors");
    make_file(path + "/trainer_state.json");
  }
};

TEST_F(GrowthTest, ASealReadsEachFolderAFewTimes) {
  make_step("/steps/checkpoint-1", 50);
  make_step("/steps/checkpoint-2", 400);
  const auto scanned_by_seal = [this](const std::string& path) {
    return scanned_by([&] { EXPECT_TRUE(seal(*store_, at(path))); });
  };
  const uint64_t few = scanned_by_seal("/steps/checkpoint-1");
  EXPECT_GT(few, 0U);
  EXPECT_LT(scanned_by_seal("/steps/checkpoint-2"), 12 * few);
}

TEST_F(GrowthTest, APurgeReadsEachNameAFewTimes) {
  make_step("/few", 200);
  make_step("/many", 1600);
  const auto scanned_by_purge = [this](const std::string& path) {
    const InodeNumber taken = at(path);
    EXPECT_TRUE(tree().take_out(kRootInode, name_of(path), taken));
    return scanned_by([&] {
      Tree::Purged purged;
      while (!purged.done) {
        auto more = tree().purge(taken, purged.last, 100);
        ASSERT_TRUE(more) << more.error().message();
        purged = std::move(more).value();
      }
    });
  };
  const uint64_t few = scanned_by_purge("/few");
  EXPECT_GT(few, 0U);
  EXPECT_LT(scanned_by_purge("/many"), 12 * few);
}

}  // namespace
}  // namespace ckptfs::meta
