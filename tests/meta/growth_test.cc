// How many records of the index an operation reads must be proportional to what it is about.
#include <rocksdb/perf_context.h>

#include "meta/care/neighbours.h"
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
  // Each has a record of its own, as one that was saved has.
  void make_steps(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const std::string path = "/steps/checkpoint-" + std::to_string(i);
      make_step(path, 0);
      ASSERT_TRUE(set_pinned(*store_, at(path), false));
    }
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

TEST_F(GrowthTest, IdenticalStepsAreFoundByReadingEachSeriesOnce) {
  const auto scanned_by_search = [this] { return scanned_by([this] { EXPECT_TRUE(identical_steps(*store_)); }); };
  make_steps(1, 51);
  const uint64_t few = scanned_by_search();
  EXPECT_GT(few, 0U);
  make_steps(51, 401);
  EXPECT_LT(scanned_by_search(), 12 * few);
}

TEST_F(GrowthTest, AStepIsTakenOutWithoutALookAtTheOthers) {
  const auto scanned_by_take_out = [this](const std::string& tag) {
    const InodeNumber step = at("/steps/" + tag);
    return scanned_by([&] { EXPECT_TRUE(tree().take_out(at("/steps"), tag, step)); });
  };
  make_steps(1, 51);
  ASSERT_TRUE(set_pinned(*store_, at("/steps/checkpoint-3"), true));
  const uint64_t few = scanned_by_take_out("checkpoint-1");
  make_steps(51, 401);
  EXPECT_LT(scanned_by_take_out("checkpoint-2"), few + 50);
}

TEST_F(GrowthTest, ARecountOfCowReservesReadsEachInodeOnce) {
  const auto scanned_by_recount = [this] { return scanned_by([this] { EXPECT_TRUE(tree().recount_cow_reserves()); }); };
  make_swap_state();
  const auto add = [this](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      make_file("/zero_stage_3/optimizer/rank0/" + std::to_string(i) + "_9.tensor.swp", std::string(4096, 'x'));
    }
  };
  add(10, 60);
  ASSERT_TRUE(save("s1"));
  const uint64_t few = scanned_by_recount();
  EXPECT_GT(few, 0U);
  add(60, 460);
  ASSERT_TRUE(save("s2"));
  EXPECT_LT(scanned_by_recount(), 12 * few);
}

}  // namespace
}  // namespace ckptfs::meta
