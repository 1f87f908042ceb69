#include "meta/remote/part.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/io/objects/memory_store.h"
#include "tests/io/testing.h"
#include "tests/meta/remote/built_steps.h"

namespace ckptfs::meta::remote {
namespace {

using io::testing::MemoryStore;
using io::testing::ScratchFolder;
using testing::BuiltPart, testing::build_part, testing::bytes_for, testing::file_entry, testing::folder_entry;
using testing::link_entry;

const PushName kPush{"global_step5", 0, "0123456789abcdef"};
const SaveFacts kSave{"5f3a", SaveLife{Milliseconds(-3), Milliseconds(1'700'000'000'123),
                                       Milliseconds(1'700'000'009'000), Milliseconds(250)}};

class PartTest : public ::testing::Test {
 protected:
  static std::string text_of_part(const Part& part) {
    std::string text(part.size(), '\0');
    EXPECT_OK(part.content().read(0, std::as_writable_bytes(std::span(text))));
    return text;
  }
  Result<Part> open(const std::string& text) const {
    TRY_ASSIGN(io::Fd file, io::open_at(AT_FDCWD, folder_.path(), O_TMPFILE | O_RDWR));
    TRY(io::write_full(file.get(), std::as_bytes(std::span(text)), 0));
    return Part::open(std::move(file));
  }
  Result<Part> build(const BuiltPart& part) const { return build_part(kPush, part, folder_.path()); }
  // The part of such a step, with one piece of its text replaced by another.
  Result<Part> open_changed(const BuiltPart& part, const std::string& from, const std::string& to) const {
    TRY_ASSIGN(const Part built, build(part));
    std::string text = text_of_part(built);
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return open(text.replace(at, from.size(), to));
  }
  // A part of these entries; files are empty. Says why it is refused.
  Error why_not(const std::vector<Entry>& entries) const {
    PartWriter writer = PartWriter::make(folder_.path()).value();
    for (const Entry& entry : entries) {
      if (auto added = writer.add(entry, {}); !added) return added.error();
    }
    const auto part = writer.finish(testing::header_for(kPush, {}, 1));
    return part ? Error() : part.error();
  }
  static BuiltPart usual() {
    BuiltPart part;
    part.file("a", "small").file("a-b", "").file("sub/deep/b.pt", bytes_for(3 * kChunkBytes + 7, 1));
    part.link("sub/link", "../a").folder("empty").file("sub/\u00fcml \"quoted\"\n", "x");
    part.save = kSave;
    return part;
  }

  const ScratchFolder folder_;
};

TEST_F(PartTest, GoesThereAndBack) {
  const Part part = build(usual()).value();
  const Part again = open(text_of_part(part)).value();
  const PartHeader& header = again.header();
  EXPECT_EQ(header.push, kPush);
  EXPECT_EQ(header.decision, (DecisionName{{1, 1}, kPush.tag, kPush.id}));
  EXPECT_EQ(header.host, "node0");
  EXPECT_EQ(header.mount, "0123:/steps");
  EXPECT_EQ(header.save, kSave);
  EXPECT_EQ(header.facts.own.completeness, formats::Completeness::incomplete);
  EXPECT_EQ(header.facts.own.reason, "rank 1 is missing");
  EXPECT_EQ(header.facts.states.missing, (std::vector<formats::MissingFile>{{"a/b.pt", 1, 2}, {"c"}}));
  EXPECT_EQ(header.entries, 9U);
  EXPECT_EQ(header.chunks, 6U);
  EXPECT_EQ(header.bytes, 3 * kChunkBytes + 13);
  EXPECT_EQ(header.files, 4U);
  EXPECT_EQ(header.key_of(again.entries().at(*again.find("a"))), "global_step5.0123456789abcdef/a");
  EXPECT_EQ(again.digest(), part.digest());
  const std::string text = text_of_part(part);
  EXPECT_EQ(again.digest(), io::digest_of(std::as_bytes(std::span(text))));
  const Entry& link = again.entries().at(*again.find("sub/link"));
  EXPECT_EQ(link.kind, Entry::Kind::link);
  EXPECT_EQ(link.target, "../a");
  EXPECT_EQ(link.mtime.tv_sec, testing::kTime.tv_sec);
  EXPECT_EQ(link.mtime.tv_nsec, testing::kTime.tv_nsec);
  const Entry& file = again.entries().at(*again.find("sub/deep/b.pt"));
  EXPECT_EQ(file.first_chunk, 1U);
  EXPECT_EQ(file.mode, 0640U);
  const auto chunks = again.chunks(file, 0, file.chunks()).value();
  EXPECT_EQ(chunks[3].length, 7U);
  EXPECT_EQ(chunks[1].length, kChunkBytes);
  const std::string content = bytes_for(3 * kChunkBytes + 7, 1);
  const auto third = std::as_bytes(std::span(content)).subspan(2 * kChunkBytes, kChunkBytes);
  EXPECT_EQ(chunks[2].digest, io::digest_of(third));
  EXPECT_EQ(again.chunks(file, 2, 1).value().front().digest, io::digest_of(third));
  EXPECT_FALSE(again.find("sub/deep/none"));
  EXPECT_ERRNO(EINVAL, again.chunks(file, 3, 2));
  EXPECT_ERRNO(EINVAL, again.chunks(file, UINT64_MAX, 2));
  EXPECT_TRUE(again.find("sub/\u00fcml \"quoted\"\n"));
}

TEST_F(PartTest, ContentIsAllButTimesAndPlaces) {
  const BuiltPart one = usual();
  BuiltPart other = usual();
  other.save = {"6a", {}};
  for (auto& [path, entry] : other.entries) entry.first.mtime.tv_sec += 5;
  const io::Digest content = build(one).value().header().content;
  const PushName push{"other", 3, "fedcba9876543210"};
  EXPECT_EQ(build_part(push, other, folder_.path(), nullptr, 4).value().header().content, content);
  other = usual();
  other.entries["a"].first.mode = 0600;
  EXPECT_NE(build(other).value().header().content, content);
  other = usual();
  other.entries["sub/link"].first.target = "../b";
  EXPECT_NE(build(other).value().header().content, content);
  EXPECT_NE(build(usual().file("a", "smalL")).value().header().content, content);
  EXPECT_NE(build(usual().folder("z")).value().header().content, content);
}

// Who adds a note to a step, or gives it to somebody else, has not saved it again.
TEST_F(PartTest, SavedAreTheFilesOfTheCheckpointAlone) {
  const auto saved = [this](const BuiltPart& part) { return build(part).value().header().saved; };
  const io::Digest before = saved(usual());
  for (const char* const note : {"eval_results.json", "README.md", "config.json", "sub/notes.txt", "sub/.cache/x"}) {
    EXPECT_EQ(saved(usual().file(note, "x")), before) << note;
  }
  BuiltPart other = usual();
  for (auto& [path, entry] : other.entries) {
    entry.first.mtime.tv_sec += 5;
    entry.first.mode ^= 0070;
    ++entry.first.uid;
    ++entry.first.gid;
  }
  EXPECT_EQ(saved(other.folder("z").link("sub/another", "link")), before);
  const PushName push{"other", 3, "fedcba9876543210"};
  EXPECT_EQ(build_part(push, other, folder_.path(), nullptr, 4).value().header().saved, before);
  EXPECT_NE(saved(usual().file("a", "smalL")), before);
  EXPECT_NE(saved(usual().file("a", "small ")), before);
  EXPECT_NE(saved(usual().file("rng_state_1.pth", "")), before);
  other = usual();
  other.entries.erase("a-b");
  EXPECT_NE(saved(other), before) << "it has no chunk, and counts";
  EXPECT_NE(saved(other.file("a-c", "")), before) << "its name counts";
}

TEST_F(PartTest, EveryTruncationIsRefused) {
  const std::string text = text_of_part(build(usual()).value());
  for (size_t length = 0; length < text.size(); ++length) EXPECT_ERRNO(EBADMSG, open(text.substr(0, length)));
  EXPECT_ERRNO(EBADMSG, open(text + "x"));
}

// A flip that is not refused changes a word or a time, and nothing that another check relies on.
TEST_F(PartTest, EveryFlippedByteIsRefusedOrHarmless) {
  const Part whole = build(usual()).value();
  const std::string text = text_of_part(whole);
  size_t opened = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char mask : {'\x01', '\x80'}) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ mask);
      const auto part = open(changed);
      if (!part) {
        const int why = part.error().errno_value();
        EXPECT_TRUE(why == EBADMSG || why == EPROTO) << at << ": " << part.error().message();
        continue;
      }
      ++opened;
      EXPECT_NE(part.value().digest(), whole.digest());
      EXPECT_EQ(part.value().header().content, whole.header().content);
      EXPECT_EQ(part.value().entries().size(), whole.entries().size());
    }
  }
  EXPECT_GT(opened, 0U);
  EXPECT_LT(opened, text.size());
}

TEST_F(PartTest, ImpossiblePathsAreRefusedByName) {
  const Entry root = folder_entry("");
  for (const char* path : {"..", ".", "a/..", "/a", "a/", "a//b", "../a", "a/./b", "\xff", "a/\xc3("}) {
    const Error why = why_not({root, folder_entry("a"), file_entry(path, 0)});
    EXPECT_EQ(why.errno_value(), EINVAL) << path;
  }
  EXPECT_EQ(why_not({root, file_entry(std::string(256, 'a'), 0)}).errno_value(), EINVAL);
  EXPECT_EQ(why_not({root, file_entry(std::string("a\0b", 3), 0)}).errno_value(), EINVAL);
  EXPECT_NE(why_not({root, file_entry("bad\xff", 0)}).message().find("bad\\xff"), std::string::npos);
  EXPECT_EQ(why_not({root, file_entry("a", 0), file_entry("a", 0)}).errno_value(), EINVAL);
  EXPECT_EQ(why_not({root, file_entry("b", 0), file_entry("a", 0)}).errno_value(), EINVAL);
  EXPECT_EQ(why_not({file_entry("a", 0)}).errno_value(), EINVAL);
  EXPECT_EQ(why_not({root, link_entry("a", "")}).errno_value(), EINVAL);
  EXPECT_EQ(why_not({root, file_entry("a", 1)}).errno_value(), EINVAL);
  // A file where a folder should be, and no folder at all.
  EXPECT_EQ(why_not({root, file_entry("a", 0), file_entry("a/b", 0)}).errno_value(), EBADMSG);
  EXPECT_EQ(why_not({root, link_entry("a", "b"), file_entry("a/b", 0)}).errno_value(), EBADMSG);
  EXPECT_EQ(why_not({root, file_entry("a/b", 0)}).errno_value(), EBADMSG);
  EXPECT_EQ(why_not({root, folder_entry("a"), file_entry("a-b", 0), file_entry("a/b", 0)}).errno_value(), 0);
}

TEST_F(PartTest, WhatOthersWroteIsCheckedAgain) {
  const auto refused = [&](const std::string& from, const std::string& to) {
    const auto part = open_changed(usual(), from, to);
    return part ? std::string("it was opened") : part.error().message();
  };
  EXPECT_NE(refused(R"("path":"a")", R"("path":"/")").find("/: its path has a name that cannot be"), std::string::npos);
  EXPECT_NE(refused(R"("path":"a-b")", R"("path":"a")").find("comes twice"), std::string::npos);
  EXPECT_NE(refused(R"("path":"a")", R"("path":"..")").find("name that cannot be"), std::string::npos);
  EXPECT_NE(refused(R"("path":"sub/deep")", R"("path":"sub/../x")").find("name that cannot be"), std::string::npos);
  EXPECT_NE(refused(R"("path":"a")", R"("path":"a\u0000")").find("zero byte"), std::string::npos);
  EXPECT_NE(refused(R"("kind":"folder")", R"("kind":"device")").find("device"), std::string::npos);
  EXPECT_NE(refused(R"("mode":493)", R"("mode":16877)").find("mode"), std::string::npos);
  EXPECT_NE(refused(R"("size":5)", R"("size":6)").find("agree"), std::string::npos);
  EXPECT_NE(refused(R"("size":5)", R"("size":-5)").find("size"), std::string::npos);
  EXPECT_NE(refused(R"("size":5)", R"("size":18446744073709551615)").find("size"), std::string::npos);
  EXPECT_NE(refused(R"("size":5)", R"("size":9223372036854775807)").find("agree"), std::string::npos);
  EXPECT_NE(refused("\"files\":4", "\"files\":5").find("agree"), std::string::npos);
  EXPECT_NE(refused("\"files\":4", "\"files\":10").find("more than there can be"), std::string::npos);
  EXPECT_NE(refused("\"slots\":1", "\"slots\":0").find("none of its"), std::string::npos);
  EXPECT_NE(refused("\"entries\":9", "\"entries\":8").find("agree"), std::string::npos);
  EXPECT_NE(refused("\"chunks\":6", "\"chunks\":70000000").find("cut short"), std::string::npos);
  EXPECT_NE(refused("\"entries\":9", "\"entries\":99999999999").find("more than there can be"), std::string::npos);
  EXPECT_NE(refused("ckptfs part 2", "something else").find("no part"), std::string::npos);
  const std::string order = Order{1, 1}.text();
  EXPECT_NE(refused(order, "x" + order).find("\"save\" is none"), std::string::npos);
  EXPECT_NE(refused(order + ".global_step5.", order + ".global_step6.").find("of another step"), std::string::npos);
  EXPECT_NE(refused(order + ".global_step5.0", order + ".global_step5.1").find("of another step"), std::string::npos)
      << "the part of slot 0 names its own push";
  EXPECT_NE(refused(R"("save":)", R"("sabe":)").find("\"save\""), std::string::npos);
  EXPECT_NE(refused(R"("attempt":"5f3a")", R"("attempt":5)").find("attempt"), std::string::npos);
  EXPECT_NE(refused(R"("error":250)", R"("error":"250")").find("life"), std::string::npos);
  EXPECT_NE(refused(R"("saved":")", R"("saved":"0)").find("digest \"saved\""), std::string::npos);
}

TEST_F(PartTest, ANewerVersionIsRefusedByName) {
  for (const char* newer : {"ckptfs part 3\n", "ckptfs part 10\n"}) {
    const auto part = open_changed({}, "ckptfs part 2\n", newer);
    EXPECT_ERRNO(EPROTO, part);
    EXPECT_NE(part.error().message().find("knows version 2"), std::string::npos);
  }
  EXPECT_ERRNO(EBADMSG, open_changed({}, "ckptfs part 2\n", "ckptfs part 02\n"));
}

TEST_F(PartTest, UnknownFieldsAreLeftOut) {
  EXPECT_OK(open_changed(usual(), "{\"attempt\"", R"({"a later one":[{"x":1}],"attempt")"));
  EXPECT_OK(open_changed(usual(), R"({"gid")", R"({"a later one":"x","gid")"));
}

TEST_F(PartTest, AnotherDigestOfAChunkIsRefused) {
  std::string text = text_of_part(build(usual()).value());
  text[text.size() - sizeof(io::Digest)] ^= 1;
  const auto part = open(text);
  EXPECT_ERRNO(EBADMSG, part);
  EXPECT_NE(part.error().message().find("another digest"), std::string::npos) << part.error().message();
}

TEST_F(PartTest, ALongListDoesNotTakeLong) {
  BuiltPart part;
  for (int number = 0; number < 3'000; ++number) part.file("d/" + std::to_string(number), "x");
  part.file("e", std::string(20 * kChunkBytes, 'x'));
  const Part built = build_part(kPush, part, folder_.path()).value();
  EXPECT_EQ(built.entries().size(), 3'003U);
  EXPECT_OK(open(text_of_part(built)));
}

TEST_F(PartTest, IsFetchedAndChecked) {
  MemoryStore store;
  const Part part = build_part(kPush, usual(), folder_.path(), &store).value();
  EXPECT_EQ(fetch_part(store, kPush, part.digest(), folder_.path(), {}).value().digest(), part.digest());
  EXPECT_OK(fetch_part(store, kPush, std::nullopt, folder_.path(), {}));
  const auto wrong = fetch_part(store, kPush, io::Digest{}, folder_.path(), {});
  EXPECT_ERRNO(EBADMSG, wrong);
  EXPECT_NE(wrong.error().message().find("memory:/" + part_key(kPush)), std::string::npos);
  EXPECT_EQ(fetch_part_header(store, kPush, {}).value().content, part.header().content);
  const PushName other{"global_step5", 1, "0123456789abcdef"};
  EXPECT_ERRNO(ENOENT, fetch_part(store, other, std::nullopt, folder_.path(), {}));
  ASSERT_OK(store.put(part_key(other), part.content(), io::PutMode::make, {}));
  EXPECT_ERRNO(EBADMSG, fetch_part(store, other, std::nullopt, folder_.path(), {}));
  EXPECT_ERRNO(EBADMSG, fetch_part_header(store, other, {}));
  const std::string cut = "ckptfs part 2\n{" + std::string(kMostEndedBytes, ' ');
  ASSERT_OK(store.put(part_key(other), io::content_of(cut), io::PutMode::replace, {}));
  EXPECT_ERRNO(EBADMSG, fetch_part_header(store, other, {}));
  ASSERT_OK(store.put(part_key(other), io::content_of(cut.substr(0, kMostEndedBytes)), io::PutMode::replace, {}));
  EXPECT_ERRNO(ESTALE, fetch_part_header(store, other, {})) << "the push was ended";
}

// Of another slot than the first the save is named by another push.
TEST_F(PartTest, GoesWithTheSaveThatItNames) {
  const PushName push{"global_step5", 1, "fedcba9876543210"};
  const DecisionName decision{{3, 7}, "global_step5", kPush.id};
  const Part part = build_part(push, usual(), folder_.path(), nullptr, 2, decision).value();
  EXPECT_EQ(part.header().decision, decision);
  EXPECT_EQ(part.header().decision.lead(), kPush);
  const DecisionName of_another_step{{3, 7}, "global_step6", kPush.id};
  EXPECT_ERRNO(EBADMSG, build_part(push, usual(), folder_.path(), nullptr, 2, of_another_step));
  EXPECT_ERRNO(EBADMSG,
               build_part(kPush, usual(), folder_.path(), nullptr, 2, DecisionName{{3, 7}, kPush.tag, push.id}));
}

TEST_F(PartTest, ALongHeaderTakesTwoRequests) {
  MemoryStore store;
  PartWriter writer = PartWriter::make(folder_.path()).value();
  ASSERT_OK(writer.add(folder_entry(""), {}));
  PartHeader header = testing::header_for(kPush, {}, 1);
  header.facts.states.missing.assign(20'000, {"a name of some twenty bytes"});
  const Part part = writer.finish(header).value();
  ASSERT_OK(store.put(part_key(kPush), part.content(), io::PutMode::make, {}));
  EXPECT_EQ(fetch_part_header(store, kPush, {}).value().facts.states.missing.size(), 20'000U);
  EXPECT_EQ(store.counts().gets, 2U);
}

}  // namespace
}  // namespace ckptfs::meta::remote
