#include "meta/remote/remote_step.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "io/fault.h"
#include "io/objects/folder_store.h"
#include "meta/remote/remote_facts.h"
#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote {
namespace {

using io::testing::MemoryStore;
using io::testing::ScratchFolder;
using testing::BuiltPart, testing::bytes_for, testing::new_push, testing::new_save, testing::put_step;

// Flips a byte of what it answers, `wrong` times, where a range holds that byte.
class LyingStore : public MemoryStore {
 public:
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const io::RequestLimits& limits) override {
    longest = std::max<size_t>(longest, buffer.size());
    TRY_ASSIGN(const size_t got, MemoryStore::get(key, offset, buffer, limits));
    const bool holds = key.ends_with(lies_in) && offset <= at && at < offset + got;
    if (!lies_in.empty() && holds && wrong > 0) {
      --wrong;
      buffer[at - offset] ^= std::byte{1};
    }
    return got;
  }
  std::string lies_in;  // the end of a key
  uint64_t at = 0;
  std::atomic<int> wrong{0};
  std::atomic<size_t> longest{0};
};

std::string read_text(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

struct stat facts_of(const std::string& path) {
  struct stat facts {};
  EXPECT_EQ(::lstat(path.c_str(), &facts), 0) << path;
  return facts;
}

class RemoteStepTest : public ::testing::Test {
 protected:
  RemoteStepTest() { std::filesystem::create_directory(out()); }
  std::string out(const std::string& name = "") const { return folder_.path("out" + (name.empty() ? "" : "/" + name)); }
  Result<RemoteStep> open(const std::vector<BuiltPart>& parts) {
    TRY_ASSIGN(const CommittedStep step, put_step(store_, new_save("global_step5"), parts, folder_.path()));
    return RemoteStep::open(store_, step, folder_.path(), {});
  }
  static const UnionEntry& file(const RemoteStep& step, const std::string& path) {
    const auto& entries = step.whole().entries;
    return *std::ranges::find(entries, path, &UnionEntry::path);
  }
  static Result<std::string> read(const RemoteStep& step, const std::string& path, uint64_t offset, size_t size) {
    std::string text(size, '\0');
    TRY(step.read(file(step, path), offset, std::as_writable_bytes(std::span(text)), {}));
    return text;
  }
  size_t left_behind() const {
    const auto all = std::filesystem::directory_iterator(out());
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  static std::string key_of(const RemoteStep& step, uint32_t slot, const std::string& path) {
    return file_key(step.commit().parts[slot].push, step.slots(), path);
  }

  const ScratchFolder folder_;
  LyingStore store_;
  const std::string large_ = bytes_for(7 * kChunkBytes + 1234, 5);
};

TEST_F(RemoteStepTest, ReadsAnyRange) {
  const RemoteStep step = open({BuiltPart().file("a", "first").file("b", large_).file("c", "")}).value();
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, size_t>>{{0, large_.size()},
                                                                             {0, 1},
                                                                             {5, kChunkBytes},
                                                                             {kChunkBytes, kChunkBytes},
                                                                             {kChunkBytes - 1, 2},
                                                                             {3 * kChunkBytes + 7, 2 * kChunkBytes},
                                                                             {7 * kChunkBytes, 1234},
                                                                             {large_.size() - 1, 1},
                                                                             {large_.size(), 0}}) {
    EXPECT_EQ(read(step, "b", offset, size).value(), large_.substr(offset, size)) << offset;
  }
  EXPECT_EQ(read(step, "a", 1, 3).value(), "irs");
  EXPECT_EQ(read(step, "c", 0, 0).value(), "");
  EXPECT_ERRNO(EINVAL, read(step, "b", large_.size(), 1));
  EXPECT_ERRNO(EINVAL, read(step, "b", UINT64_MAX, 1));
  EXPECT_ERRNO(EINVAL, read(step, "c", 0, 1));
}

TEST_F(RemoteStepTest, AsksForRangesAndForNoMoreThan16MiB) {
  const std::string text(40 * kChunkBytes, 'x');
  const RemoteStep step = open({BuiltPart().file("a", text)}).value();
  const uint64_t before = store_.counts().gets;
  store_.longest = 0;
  EXPECT_EQ(read(step, "a", 0, text.size()).value(), text);
  EXPECT_EQ(store_.counts().gets - before, 3U);
  EXPECT_EQ(store_.longest, size_t{16} << 20);
}

TEST_F(RemoteStepTest, AWrongChunkIsAskedForOnceMore) {
  const RemoteStep step = open({BuiltPart().file("d/b", large_)}).value();
  store_.lies_in = key_of(step, 0, "d/b");
  store_.at = 4 * kChunkBytes + 5;
  store_.wrong = 1;
  EXPECT_EQ(read(step, "d/b", 0, large_.size()).value(), large_);
  EXPECT_EQ(store_.wrong, 0);
  store_.wrong = 1000;
  const auto wrong = read(step, "d/b", 0, large_.size());
  EXPECT_ERRNO(EBADMSG, wrong);
  EXPECT_EQ(store_.wrong, 998);
  EXPECT_EQ(wrong.error().message(), "d/b: chunk 4: memory:/" + key_of(step, 0, "d/b") +
                                         " holds something else than was pushed (at byte 4194304, asked twice)");
  EXPECT_EQ(read(step, "d/b", 0, 4 * kChunkBytes).value(), large_.substr(0, 4 * kChunkBytes));
}

TEST_F(RemoteStepTest, AnObjectThatIsTooShortIsNamed) {
  const RemoteStep step = open({BuiltPart().file("b", large_)}).value();
  ASSERT_OK(store_.put(key_of(step, 0, "b"), io::content_of(std::string_view(large_).substr(0, 2'500'000)),
                       io::PutMode::replace, {}));
  EXPECT_OK(read(step, "b", 0, 2 * kChunkBytes));
  const auto wrong = read(step, "b", 0, large_.size());
  EXPECT_ERRNO(EBADMSG, wrong);
  EXPECT_NE(wrong.error().message().find("b: chunk 2: "), std::string::npos);
  EXPECT_NE(wrong.error().message().find("ends before it"), std::string::npos);
  ASSERT_OK(store_.remove(key_of(step, 0, "b"), {}));
  EXPECT_ERRNO(ENOENT, read(step, "b", 0, 1));
}

TEST_F(RemoteStepTest, OpensWhatTheCommitNames) {
  const CommittedStep step = put_step(store_, new_save("a"), {BuiltPart(), BuiltPart()}, folder_.path()).value();
  const RemoteStep opened = RemoteStep::open(store_, step, folder_.path(), {}).value();
  EXPECT_EQ(opened.slots(), 2U);
  EXPECT_EQ(opened.step().name(), "a");
  const std::string key = part_key(opened.commit().parts[1].push);
  const Part other =
      testing::build_part(opened.commit().parts[1].push, BuiltPart().file("a", "x"), folder_.path(), nullptr, 2)
          .value();
  ASSERT_OK(store_.put(key, other.content(), io::PutMode::replace, {}));
  const auto wrong = RemoteStep::open(store_, step, folder_.path(), {});
  EXPECT_ERRNO(EBADMSG, wrong);
  EXPECT_NE(wrong.error().message().find(key), std::string::npos);
  ASSERT_OK(store_.remove(key, {}));
  EXPECT_ERRNO(ENOENT, RemoteStep::open(store_, step, folder_.path(), {}));
}

// Each part says for ever with which save it goes.
TEST_F(RemoteStepTest, ACommitOfPartsOfTwoSavesIsRefused) {
  const DecisionName name = new_save("a", 1), other = new_save("a", 2);
  const auto build = [&](const PushName& push, const DecisionName& decision) {
    return testing::build_part(push, BuiltPart(), folder_.path(), &store_, 2, decision).value().name();
  };
  const PartName first = build(name.lead(), name), second = build(new_push("a", 1), other);
  const std::string text = text_of(Commit{name, {first, second}, {}, "node0"});
  ASSERT_OK(store_.put(step_key(name), io::content_of(text), io::PutMode::make, {}));
  const auto wrong = RemoteStep::open(store_, CommittedStep{name, 1, {}}, folder_.path(), {});
  EXPECT_ERRNO(EBADMSG, wrong);
  EXPECT_NE(wrong.error().message().find(part_key(second.push)), std::string::npos);
}

TEST_F(RemoteStepTest, ExportsWhatWasPut) {
  BuiltPart one, other;
  one.file("a", "first").file("sub/deep/b", large_).folder("empty").link("sub/link", "../a");
  one.entries["empty"].first.mode = 0550;
  one.entries["a"].first.mode = 06755;
  other.file("a", "first").file("sub/c", "only here");
  const RemoteStep step = open({one, other}).value();
  std::atomic<uint64_t> most{0};
  ReadSettings settings;
  settings.progress = [&](const ReadProgress& progress) { most = std::max<uint64_t>(most, progress.done); };
  ASSERT_OK(export_step(step, std::nullopt, out("step"), settings));
  EXPECT_EQ(most, large_.size() + 14);
  EXPECT_EQ(read_text(out("step/a")), "first");
  EXPECT_EQ(read_text(out("step/sub/deep/b")), large_);
  EXPECT_EQ(read_text(out("step/sub/c")), "only here");
  EXPECT_EQ(std::filesystem::read_symlink(out("step/sub/link")), "../a");
  EXPECT_EQ(facts_of(out("step/a")).st_mode, mode_t{S_IFREG | 0755});
  EXPECT_EQ(facts_of(out("step/empty")).st_mode, mode_t{S_IFDIR | 0550});
  for (const char* path : {"step", "step/a", "step/sub", "step/sub/deep/b", "step/sub/link", "step/empty"}) {
    EXPECT_EQ(facts_of(out(path)).st_mtim.tv_sec, testing::kTime.tv_sec) << path;
    EXPECT_EQ(facts_of(out(path)).st_mtim.tv_nsec, testing::kTime.tv_nsec) << path;
  }
  ASSERT_OK(export_step(step, 1, out("own") + "/", {}));
  EXPECT_EQ(read_text(out("own/sub/c")), "only here");
  EXPECT_FALSE(std::filesystem::exists(out("own/empty")));
  EXPECT_EQ(left_behind(), 2U);
  EXPECT_ERRNO(EINVAL, export_step(step, 2, out("none"), {}));
}

// Notes until when each request may take, and takes a moment for it.
class SlowStore : public MemoryStore {
 public:
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const io::RequestLimits& limits) override {
    {
      const io::MutexLock lock(mutex);
      deadlines.insert(limits.deadline);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return MemoryStore::get(key, offset, buffer, limits);
  }
  io::Mutex mutex;
  std::set<std::chrono::steady_clock::time_point> deadlines;
};

TEST_F(RemoteStepTest, ADeadlineCanBeThatOfAllRequests) {
  SlowStore store;
  const std::vector<BuiltPart> parts(20);
  const CommittedStep step = put_step(store, new_save("a"), parts, folder_.path()).value();
  for (const bool in_all : {false, true}) {
    store.deadlines.clear();
    io::RequestLimits limits = io::RequestLimits::within(std::chrono::minutes(1));
    limits.in_all = in_all;
    ASSERT_OK(RemoteStep::open(store, step, folder_.path(), limits));
    EXPECT_EQ(store.deadlines.size() == 1, in_all);
    EXPECT_EQ(store.deadlines.contains(limits.deadline), true);
  }
}

// The reader in tests/remote was written from docs/remote-format.md alone.
TEST_F(RemoteStepTest, AnIndependentReaderReadsTheSame) {
  std::filesystem::create_directory(folder_.path("remote"));
  const auto store = io::FolderStore::open(folder_.path("remote")).value();
  ASSERT_OK(found_remote(*store, 2, "node0", {}));
  BuiltPart one, other;
  one.file("a", "first").file("sub/b", large_).folder("empty").link("sub/link", "../a").file("c.json", "1");
  one.file("zero_pp_rank_0_mp_rank_00_model_states.pt", "m").file("offloaded_tensors/rank00/x", "swap 0");
  other.file("a", "first").file("sub/\u00fc", "only here").file("c.json", "2").file("offloaded_tensors/rank00x/y", "z");
  other.file("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "m").file("offloaded_tensors/rank00/x", "swap 1");
  const CommittedStep named = put_step(*store, new_save("global_step5"), {one, other}, folder_.path()).value();
  const RemoteStep step = RemoteStep::open(*store, named, folder_.path(), {}).value();
  EXPECT_EQ(file(step, "offloaded_tensors/rank01/x").slot, 1U);
  for (const std::optional<uint32_t> slot : {std::optional<uint32_t>(), std::optional<uint32_t>(1)}) {
    const std::string exported = out(slot ? "own" : "whole"), read = exported + ".read";
    ASSERT_OK(export_step(step, slot, exported, {}));
    const std::string command = "python3 " CKPTFS_SOURCE_DIR "/tests/remote/reader.py " + folder_.path("remote") +
                                " global_step5 " + read + (slot ? " 1" : "") + " && diff -r --no-dereference " +
                                exported + " " + read;
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

TEST_F(RemoteStepTest, ExportReplacesNothing) {
  const RemoteStep step = open({BuiltPart().file("a", "x")}).value();
  std::filesystem::create_directory(out("there"));
  EXPECT_ERRNO(EEXIST, export_step(step, std::nullopt, out("there"), {}));
  EXPECT_ERRNO(ENOENT, export_step(step, std::nullopt, out("no/folder"), {}));
  EXPECT_EQ(left_behind(), 1U);
}

TEST_F(RemoteStepTest, AnExportThatFailsLeavesNothing) {
  const RemoteStep step = open({BuiltPart().file("a", "x").file("b/c", large_)}).value();
  store_.lies_in = key_of(step, 0, "b/c");
  store_.wrong = 1000;
  EXPECT_ERRNO(EBADMSG, export_step(step, std::nullopt, out("step"), {}));
  EXPECT_EQ(left_behind(), 0U);
  store_.wrong = 0;
#ifdef CKPTFS_FAULT_POINTS
  io::set_fault("remote_export.publish", "error:EIO");
  EXPECT_ERRNO(EIO, export_step(step, std::nullopt, out("step"), {}));
  io::set_fault("remote_export.publish", "");
  EXPECT_EQ(left_behind(), 0U);
#endif
}

TEST_F(RemoteStepTest, AnExportCanBeStopped) {
  const RemoteStep step = open({BuiltPart().file("a", large_).file("b", large_)}).value();
  std::atomic<bool> stop{true};
  ReadSettings settings;
  settings.stop = &stop;
  EXPECT_ERRNO(ECANCELED, export_step(step, std::nullopt, out("step"), settings));
  EXPECT_ERRNO(ECANCELED, verify_step(step, 1, settings));
  stop = false;
  settings.parallel = 1;
  settings.progress = [&](const ReadProgress&) { stop = true; };
  EXPECT_ERRNO(ECANCELED, export_step(step, std::nullopt, out("step"), settings));
  EXPECT_EQ(left_behind(), 0U);
}

TEST_F(RemoteStepTest, VerifiesAll) {
  const RemoteStep step = open({BuiltPart().file("a", large_).file("b", "x"), BuiltPart().file("c", large_)}).value();
  const VerifyReport good = verify_step(step, 1, {}).value();
  EXPECT_EQ(good.chunks, 17U);
  EXPECT_EQ(good.bytes, 2 * large_.size() + 1);
  EXPECT_TRUE(good.wrong.empty());
  EXPECT_EQ(verify_step(step, 0, {}).value().chunks > 0, true);
  EXPECT_LT(verify_step(step, 0.01, {}).value().chunks, 17U);

  store_.lies_in = key_of(step, 1, "c");
  store_.at = 3 * kChunkBytes + 3;
  store_.wrong = 1000;
  const VerifyReport bad = verify_step(step, 1, {}).value();
  EXPECT_EQ(bad.chunks, 17U);
  ASSERT_EQ(bad.wrong.size(), 1U);
  EXPECT_NE(bad.wrong[0].find("c: chunk 3: memory:/" + key_of(step, 1, "c")), std::string::npos) << bad.wrong[0];
}

TEST_F(RemoteStepTest, VerifyingNamesObjectsThatAreMissingOrOfAnotherLength) {
  const RemoteStep step = open({BuiltPart().file("a", large_).file("b", large_).file("c", "")}).value();
  ASSERT_OK(store_.remove(key_of(step, 0, "a"), {}));
  ASSERT_OK(store_.remove(key_of(step, 0, "c"), {}));
  const std::string longer = large_ + "x";
  ASSERT_OK(store_.put(key_of(step, 0, "b"), io::content_of(std::string_view(longer)), io::PutMode::replace, {}));
  const VerifyReport report = verify_step(step, 1, {}).value();
  EXPECT_EQ(report.chunks, 8U);
  ASSERT_EQ(report.wrong.size(), 3U);
  EXPECT_EQ(report.wrong[0], "memory:/" + key_of(step, 0, "b") + ": it has 7341267 bytes, and should have 7341266");
  EXPECT_EQ(report.wrong[1], "memory:/" + key_of(step, 0, "a") + ": it is not there");
  EXPECT_EQ(report.wrong[2], "memory:/" + key_of(step, 0, "c") + ": it is not there");
  store_.fate = [](const std::string& operation, const std::string&) {
    return operation == "get" ? MemoryStore::Fate::forbidden : MemoryStore::Fate::done;
  };
  EXPECT_ERRNO(EACCES, verify_step(step, 1, {}));
}

}  // namespace
}  // namespace ckptfs::meta::remote
