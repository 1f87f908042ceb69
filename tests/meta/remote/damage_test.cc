// Each byte of each object of a small step is flipped, each object cut and exchanged for another: what is read is
// right, or an error that names the object.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "io/objects/folder_store.h"
#include "meta/remote/chunk_reader.h"
#include "meta/remote/remote_step.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote {
namespace {

using io::testing::ScratchFolder;
using testing::BuiltPart, testing::bytes_for, testing::new_save, testing::put_step;

// Of an entry: kind, mode, uid, gid, and the bytes or the target.
using ReadEntry = std::tuple<Entry::Kind, uint32_t, uint32_t, uint32_t, std::string>;
using ReadStep = std::map<std::string, ReadEntry>;

// Of the union, and under "@I/" of what each slot holds.
Result<ReadStep> read_files(io::ObjectStore& store, const std::shared_ptr<const RemoteStep>& step) {
  ChunkReader::Settings settings;
  settings.connections = 1;
  ReadStep found;
  const auto read = [&](const Union& files, const std::string& under) -> Result<> {
    ChunkReader reader(store, settings);  // a chunk that it has is not read from another slot's file
    for (const UnionEntry& at : files.entries) {
      const Entry& entry = step->entry(at);
      std::string bytes(entry.size, '\0');
      TRY(reader.read_now({step, at}, 0, std::as_writable_bytes(std::span(bytes))));
      found[under + at.path] = {entry.kind, entry.mode, entry.uid, entry.gid,
                                entry.kind == Entry::Kind::link ? entry.target : bytes};
    }
    return success();
  };
  TRY(read(step->whole(), ""));
  for (uint32_t slot = 0; slot < step->slots(); ++slot) {
    TRY(read(step->of_slot(slot), "@" + std::to_string(slot) + "/"));
  }
  return found;
}

Result<std::shared_ptr<const RemoteStep>> open_step(io::ObjectStore& store, const std::string& tag,
                                                    const std::string& folder) {
  TRY_ASSIGN(const CommittedStep committed, find_step(store, tag, {}));
  TRY_ASSIGN(RemoteStep step, RemoteStep::open(store, committed, folder, {}));
  return std::make_shared<const RemoteStep>(std::move(step));
}

std::string content_of_object(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class DamageTest : public ::testing::Test {
 protected:
  static constexpr const char* kTag = "global_step5";
  static constexpr const char* kOther = "global_step6";

  void SetUp() override {
    std::filesystem::create_directory(root());
    store_ = io::FolderStore::open(root()).value();
    for (const char* const tag : {kTag, kOther}) {
      const unsigned seed = tag == kTag ? 0 : 100;
      BuiltPart one, two;
      for (unsigned number = 0; number < 4; ++number) {
        one.file("sub/" + std::to_string(number), bytes_for(30 + number, seed + number));
      }
      one.file("shared", bytes_for(20, seed + 10))
          .file("args.json", "of slot 0" + std::to_string(seed))
          .link("link", "shared")
          .folder("empty");
      two.file("shared", bytes_for(20, seed + 10))
          .file("args.json", "of slot 1" + std::to_string(seed))
          .file("own", bytes_for(25, seed + 11));
      ASSERT_OK(put_step(*store_, new_save(tag, 1 + seed), {one, two}, folder_.path()));
      const auto step = open_step(*store_, tag, folder_.path());
      ASSERT_OK(step);
      const auto read = read_files(*store_, step.value());
      ASSERT_OK(read);
      right_[tag] = read.value();
      ASSERT_EQ(right_[tag].size(), 25U);
    }
    ASSERT_NE(right_[kTag], right_[kOther]);
    for (const auto& found : std::filesystem::recursive_directory_iterator(root())) {
      if (found.is_regular_file()) objects_.push_back(std::filesystem::relative(found.path(), root()));
    }
    std::ranges::sort(objects_);
  }

  std::string root() const { return folder_.path("remote"); }
  void write(const std::string& key, const std::string& content) const {
    std::ofstream(root() + "/" + key, std::ios::binary | std::ios::trunc) << content;
  }
  // Of a file or a part its own name; of a commit, which names others, at least the step.
  static std::string named_by(const std::string& key) { return key.starts_with(kSteps) ? kTag : key; }

  // Reads the step `tag`, of which the object `key` may be damaged. Returns whether it could be read.
  bool is_right_or_named(const std::string& tag, const std::string& key, const std::string& what) {
    const auto step = open_step(*store_, tag, folder_.path());
    return is_right_or_named(step ? read_files(*store_, step.value()) : step.error(), tag, key, what);
  }
  bool is_right_or_named(const Result<ReadStep>& read, const std::string& tag, const std::string& key,
                         const std::string& what) {
    if (read) {
      EXPECT_EQ(read.value(), right_[tag]) << key << ": " << what;
    } else {
      EXPECT_NE(read.error().message().find(named_by(key)), std::string::npos)
          << key << ": " << what << ": " << read.error().message();
    }
    return read.has_value();
  }

  const ScratchFolder folder_;
  std::unique_ptr<io::ObjectStore> store_;
  std::map<std::string, ReadStep> right_;
  std::vector<std::string> objects_;  // keys
};

TEST_F(DamageTest, EachByteFlipped) {
  const auto opened = open_step(*store_, kTag, folder_.path());
  ASSERT_OK(opened);
  for (const std::string& key : objects_) {
    if (key.find(kTag) == std::string::npos) continue;
    const std::string before = content_of_object(root() + "/" + key);
    size_t errors = 0;
    for (size_t at = 0; at < before.size(); ++at) {
      std::string harmed = before;
      harmed[at] = static_cast<char>(harmed[at] ^ (1 << (at % 8)));
      write(key, harmed);
      const std::string what = "byte " + std::to_string(at);
      // An open step does not read its commit and its parts again.
      const bool read = parse_folder(key).has_value()
                            ? is_right_or_named(read_files(*store_, opened.value()), kTag, key, what)
                            : is_right_or_named(kTag, key, what);
      errors += read ? 0 : 1;
    }
    write(key, before);
    EXPECT_EQ(errors, before.size()) << key;
  }
  EXPECT_TRUE(is_right_or_named(kTag, "nothing", "all is as it was"));
}

TEST_F(DamageTest, EachObjectCut) {
  for (const std::string& key : objects_) {
    if (key.find(kTag) == std::string::npos) continue;
    const std::string before = content_of_object(root() + "/" + key);
    for (const size_t size : {size_t{0}, size_t{1}, before.size() / 3, before.size() / 2, before.size() - 1}) {
      write(key, before.substr(0, size));
      const bool read = is_right_or_named(kTag, key, "cut to " + std::to_string(size));
      // The last byte of a commit is a line feed, which says nothing.
      EXPECT_EQ(read, key.starts_with(kSteps) && size + 1 == before.size()) << key << " cut to " << size;
    }
    write(key, before + "x");
    EXPECT_EQ(is_right_or_named(kTag, key, "one byte more"), parse_folder(key).has_value()) << key;
    std::filesystem::remove(root() + "/" + key);
    EXPECT_FALSE(is_right_or_named(kTag, key, "gone")) << key;
    write(key, before);
  }
}

TEST_F(DamageTest, EachObjectExchangedForAnother) {
  size_t pairs = 0;
  for (const std::string& key : objects_) {
    if (key.find(kTag) == std::string::npos) continue;
    const std::string before = content_of_object(root() + "/" + key);
    for (const std::string& other : objects_) {
      if (other == key || content_of_object(root() + "/" + other) == before) continue;
      write(key, content_of_object(root() + "/" + other));
      EXPECT_FALSE(is_right_or_named(kTag, key, "it is " + other)) << key << " is " << other;
      EXPECT_TRUE(is_right_or_named(kOther, key, "of a step beside it"));
      ++pairs;
    }
    write(key, before);
  }
  EXPECT_EQ(pairs, objects_.size() / 2 * (objects_.size() - 1) - 2) << "what both slots hold is the same";
}

}  // namespace
}  // namespace ckptfs::meta::remote
