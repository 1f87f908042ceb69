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

// Refused opens are logged with the path, and a file that may make a step asks for its folder's name.
TEST_F(GrowthTest, APathIsFoundWithoutALookAtTheNamesBesideIt) {
  const auto scanned_by_path = [this](const std::string& path) {
    const InodeNumber number = at(path);
    return scanned_by([&] { EXPECT_EQ(tree().path_of(number), path); });
  };
  for (const char* folder : {"/few", "/many"}) make_folder(folder);
  make_step("/few/last", 10);
  make_step("/many/last", 10);
  for (int i = 0; i < 1000; ++i) make_folder("/many/folder-" + std::to_string(i));
  const uint64_t few = scanned_by_path("/few/last/trainer_state.json");
  EXPECT_LE(scanned_by_path("/many/last/trainer_state.json"), few + 2);
  ASSERT_TRUE(tree().rename(at("/many"), "last", at("/many"), "renamed", 0));
  ASSERT_TRUE(tree().rename(at("/many/renamed"), "trainer_state.json", at("/many"), "moved.json", 0));
  EXPECT_LE(scanned_by_path("/many/renamed"), few + 2);
  EXPECT_LE(scanned_by_path("/many/moved.json"), few + 2);
}

TEST_F(GrowthTest, AFileThatMayMakeAStepCostsTheSameBesideManyFolders) {
  for (const char* folder : {"/few", "/runs"}) make_folder(folder);
  for (int i = 0; i < 1000; ++i) make_folder("/runs/s-" + std::to_string(i));
  make_folder("/few/s-1");
  for (const std::string name : {"config.json", "model.safetensors", "trainer_state.json"}) {
    const uint64_t few = scanned_by([&] { make_file("/few/s-1/" + name); });
    EXPECT_LE(scanned_by([&] { make_file("/runs/s-1/" + name); }), few + 10) << name;
  }
}

// Of a folder with a step's name, too, in which there are no files of a checkpoint.
TEST_F(GrowthTest, AFileThatMayMakeAStepIsNotLookedForAmongAllOthers) {
  for (const char* folder : {"/few", "/many", "/few/step_1", "/many/step_1"}) make_folder(folder);
  for (int i = 0; i < 600; ++i) make_folder("/few/step_1/" + std::to_string(i));
  for (int i = 0; i < 4800; ++i) make_folder("/many/step_1/" + std::to_string(i));
  const auto scanned_by_name = [this](const std::string& path) { return scanned_by([&] { make_file(path); }); };
  EXPECT_LT(scanned_by_name("/many/step_1/config.json"), 2 * scanned_by_name("/few/step_1/config.json"));
  EXPECT_EQ(tree().inode(at("/many")).value().flags & kSeries, 0U);
  EXPECT_LT(scanned_by_name("/many/step_1/z.safetensors"), 2 * scanned_by_name("/few/step_1/z.safetensors"));
  EXPECT_NE(tree().inode(at("/many")).value().flags & kSeries, 0U) << "the new file and config.json make it one";
}

}  // namespace
}  // namespace ckptfs::meta
