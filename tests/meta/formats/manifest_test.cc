#include "meta/formats/manifest.h"

#include <gtest/gtest.h>

#include <span>

#include "tests/meta/formats/step_in_memory.h"

namespace ckptfs::meta::formats {
namespace {

RankManifest manifest_of(unsigned rank, unsigned world_size, const std::string& attempt = "a1") {
  return {attempt, rank, world_size, {{"rank" + std::to_string(rank), 5}}};
}

void add_rank(StepInMemory& step, const RankManifest& manifest) {
  step.add(manifest_name(manifest.rank), manifest_text(manifest));
  step.add("rank" + std::to_string(manifest.rank), "12345");
}

TEST(Manifest, ComesBack) {
  const auto back = parse_manifest(manifest_text(manifest_of(3, 5)));
  ASSERT_TRUE(back);
  EXPECT_EQ(back.value().attempt, "a1");
  EXPECT_EQ(back.value().rank, 3U);
  EXPECT_EQ(back.value().world_size, 5U);
  ASSERT_EQ(back.value().files.size(), 1U);
  EXPECT_EQ(back.value().files[0].path, "rank3");
  EXPECT_EQ(back.value().files[0].size, 5U);
}

TEST(Manifest, TimingComesBack) {
  RankManifest manifest = manifest_of(0, 1);
  manifest.timing = {1700000000.25, 1700000002.5, "node3", {{"copy", 0.5}, {"sync", 1}}};
  const auto back = parse_manifest(manifest_text(manifest));
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_TRUE(back.value().timing);
  EXPECT_EQ(back.value().timing->begun, 1700000000.25);
  EXPECT_EQ(back.value().timing->durable, 1700000002.5);
  EXPECT_EQ(back.value().timing->host, "node3");
  EXPECT_EQ(back.value().timing->stages, manifest.timing->stages);
  EXPECT_EQ(back.value().files.size(), 1U);
  EXPECT_FALSE(parse_manifest(manifest_text(manifest_of(0, 1))).value().timing);
}

TEST(Manifest, TimingOfAnotherKindIsLeftOut) {
  std::string many;
  for (int stage = 0; stage < 100; ++stage) many += ",\"s" + std::to_string(stage) + "\":1";
  const auto back = parse_manifest(
      R"({"format": 1, "attempt": "a", "rank": 0, "world_size": 1, "timing": {"begun": -1, "durable": "soon",)"
      R"( "host": 5, "stages": {"copy": -2, "Not A Stage": 1, "deep": {"copy": 3})" +
      many + R"(}, "copy": 4}, "files": []})");
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_TRUE(back.value().timing);
  EXPECT_EQ(back.value().timing->begun, 0);
  EXPECT_EQ(back.value().timing->stages.size(), kMostStages);
  EXPECT_FALSE(back.value().timing->stages.contains("copy"));
}

RankManifest with_digests(uint64_t size, uint64_t chunk, size_t count) {
  RankManifest manifest{"a1", 0, 1, {{"plain", 7}, {"rank0", size}}};
  manifest.digests["rank0"].chunk = chunk;
  for (size_t at = 0; at < count; ++at) {
    manifest.digests["rank0"].digests.push_back(io::digest_of(std::as_bytes(std::span(&at, 1))));
  }
  return manifest;
}

TEST(Manifest, DigestsComeBack) {
  for (const auto& [size, count] : std::vector<std::pair<uint64_t, size_t>>{{0, 0}, {1, 1}, {8192, 2}, {8193, 3}}) {
    const RankManifest manifest = with_digests(size, 4096, count);
    const auto back = parse_manifest(manifest_text(manifest));
    ASSERT_TRUE(back) << back.error().message();
    ASSERT_EQ(back.value().digests.size(), 1U);
    EXPECT_EQ(back.value().digests.at("rank0").chunk, 4096U);
    EXPECT_EQ(back.value().digests.at("rank0").digests, manifest.digests.at("rank0").digests);
    ASSERT_EQ(back.value().files.size(), 2U);
    EXPECT_EQ(back.value().files[1].size, size);
  }
}

TEST(Manifest, DigestsThatDoNotFitAreSaid) {
  const auto why = [](const std::string& text) {
    const auto back = parse_manifest(text);
    return back ? "it is accepted" : back.error().message();
  };
  EXPECT_NE(why(manifest_text(with_digests(8193, 4096, 2))).find("rank0: it has 2 digests, and should have 3"),
            std::string::npos);
  EXPECT_NE(why(manifest_text(with_digests(8192, 4096, 3))).find("3 digests, and should have 2"), std::string::npos);
  EXPECT_NE(why(manifest_text(with_digests(UINT64_MAX, 4096, 1))).find("1 digests"), std::string::npos);
  for (const uint64_t chunk : {uint64_t{0}, uint64_t{1}, uint64_t{2048}, uint64_t{5000}, UINT64_MAX}) {
    EXPECT_NE(why(manifest_text(with_digests(8192, chunk, 2))).find("rank0: its digests are of chunks of"),
              std::string::npos)
        << chunk;
  }
  const auto file = [](const std::string& more) {
    return R"({"format": 1, "attempt": "a", "rank": 0, "world_size": 1, "files": [{"name": "f", "size": 5, )" + more +
           "}]}";
  };
  const std::string good(64, 'a');
  EXPECT_EQ(why(file(R"("chunk": 4096, "digests": [")" + good + R"("])")), "it is accepted");
  EXPECT_EQ(why(file(R"("digests": [")" + good + R"("], "chunk": 4096)")), "it is accepted");
  for (const std::string& digest : {good.substr(1), good + "a", std::string(64, 'A'), std::string(64, 'g')}) {
    EXPECT_NE(why(file(R"("chunk": 4096, "digests": [")" + digest + R"("])")).find("a digest that is none"),
              std::string::npos)
        << digest;
  }
  for (const char* const wrong : {R"("chunk": 4096)", R"("digests": [])", R"("chunk": 4096, "digests": [1])",
                                  R"("chunk": 4096, "digests": {"a": "b"})", R"("chunk": 4096, "digests": [["a"]])"}) {
    EXPECT_FALSE(parse_manifest(file(wrong))) << wrong;
  }
}

TEST(Manifest, NamesTellTheRank) {
  EXPECT_EQ(manifest_name(7), "ckptfs.rank07.json");
  EXPECT_EQ(rank_of_manifest("ckptfs.rank123.json"), 123U);
  for (const char* const other : {"ckptfs.ds_ids.json", "rank07.json", "ckptfs.rank07", "ckptfs..json", ".json", ""}) {
    EXPECT_FALSE(is_manifest_name(other)) << other;
  }
}

TEST(Manifest, WhatIsNone) {
  for (const char* const text :
       {"", "[]", "{}", R"({"format": 2, "attempt": "a", "rank": 0, "world_size": 1, "files": []})",
        R"({"format": 1, "attempt": "a", "rank": 1, "world_size": 1, "files": []})",
        R"({"format": 1, "attempt": "a", "rank": 0, "world_size": 0, "files": []})",
        R"({"format": 1, "attempt": "a", "rank": 0, "world_size": 4294967295, "files": []})",
        R"({"format": 1, "attempt": "a", "rank": 0, "world_size": 1, "files": [{"name": 3}]})"}) {
    EXPECT_FALSE(parse_manifest(text)) << text;
  }
}

TEST(Manifest, AllRanksHaveToBeThere) {
  StepInMemory step;
  EXPECT_FALSE(check_manifests(step).complete());
  add_rank(step, manifest_of(0, 2));
  EXPECT_EQ(check_manifests(step).missing, std::vector<unsigned>{1});
  EXPECT_NE(check_manifests(step).reason.find("ckptfs.rank01.json"), std::string::npos);
  add_rank(step, manifest_of(1, 2));
  EXPECT_TRUE(check_manifests(step).complete());
  EXPECT_TRUE(check_manifests(step, 2).complete());
  EXPECT_FALSE(check_manifests(step, 3).complete());
  EXPECT_FALSE(check_manifests(step, 1).complete());
}

TEST(Manifest, OfOneAttempt) {
  StepInMemory step;
  add_rank(step, manifest_of(0, 2));
  add_rank(step, manifest_of(1, 2, "a2"));
  EXPECT_FALSE(check_manifests(step).complete());
}

TEST(Manifest, FilesHaveTheLengthThatItSays) {
  StepInMemory missing, shorter;
  missing.add(manifest_name(0), manifest_text(manifest_of(0, 1)));
  EXPECT_EQ(check_manifests(missing).reason, "rank0: it is not there");
  shorter.add(manifest_name(0), manifest_text(manifest_of(0, 1)));
  shorter.add("rank0", "1234");
  EXPECT_EQ(check_manifests(shorter).reason, "rank0: it has 4 bytes, and should have 5");
}

}  // namespace
}  // namespace ckptfs::meta::formats
