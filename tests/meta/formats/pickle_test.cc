#include "meta/formats/pickle.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace ckptfs::meta::formats {
namespace {

using Kind = Pickle::Kind;
using std::string_literals::operator""s;

// {'a': 1, 'b': [1.5, None, True, -3, 70000], 'c': (1,), 'd': b'xy', 'e': 2**40, 'f': 2**70}
const std::string kProtocol2 =
    "\x80\x02}q\x00(X\x01\x00\x00\x00"
    "aq\x01K\x01X\x01\x00\x00\x00"
    "bq\x02]q\x03(G\x3f\xf8\x00\x00\x00\x00\x00\x00N\x88J\xfd\xff\xff\xffJp\x11\x01\x00"
    "eX\x01\x00\x00\x00"
    "cq\x04K\x01\x85q\x05X\x01\x00\x00\x00"
    "dq\x06"
    "c_codecs\nencode\nq\x07X\x02\x00\x00\x00xyq\x08X\x06\x00\x00\x00latin1q\x09\x86q\nRq\x0bX\x01\x00\x00\x00"
    "eq\x0c\x8a\x06\x00\x00\x00\x00\x00\x01X\x01\x00\x00\x00"
    "fq\x0d\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@u."s;
const std::string kProtocol4 =
    "\x80\x04\x95T\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
    "a\x94K\x01\x8c\x01"
    "b\x94]\x94(G\x3f\xf8\x00\x00\x00\x00\x00\x00N\x88J\xfd\xff\xff\xffJp\x11\x01\x00"
    "e\x8c\x01"
    "c\x94K\x01\x85\x94\x8c\x01"
    "d\x94"
    "C\x02xy\x94\x8c\x01"
    "e\x94\x8a\x06\x00\x00\x00\x00\x00\x01\x8c\x01"
    "f\x94\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@u."s;

Pickle read(const std::string& bytes) {
  auto pickle = read_pickle(bytes);
  EXPECT_TRUE(pickle) << pickle.error().message();
  return std::move(pickle).value();
}

TEST(Pickle, ReadsWhatEachProtocolWrites) {
  for (const std::string& bytes : {kProtocol2, kProtocol4}) {
    const Pickle pickle = read(bytes);
    const auto root = pickle.root();
    ASSERT_EQ(root.kind(), Kind::dict);
    ASSERT_EQ(root.pairs(), 6U);
    EXPECT_EQ(root.pair(0).first.text(), "a");
    EXPECT_EQ(root.find("a")->integer(), 1);
    const auto list = *root.find("b");
    ASSERT_EQ(list.size(), 5U);
    EXPECT_EQ(list[0].kind(), Kind::real);
    EXPECT_TRUE(list[1].is_none());
    EXPECT_EQ(list[2].boolean(), true);
    EXPECT_EQ(list[3].integer(), -3);
    EXPECT_EQ(list[4].integer(), 70000);
    EXPECT_EQ((*root.find("c"))[0].integer(), 1);
    EXPECT_EQ(root.find("e")->integer(), int64_t{1} << 40);
    EXPECT_EQ(root.find("f")->kind(), Kind::big_integer);
    EXPECT_EQ(root.find("f")->integer(), std::nullopt);
    EXPECT_FALSE(root.find("g"));
  }
}

TEST(Pickle, DictsByCallAreDicts) {
  const Pickle pickle = read(
      "\x80\x02"
      "ccollections\nOrderedDict\nq\x00)Rq\x01(X\x01\x00\x00\x00xq\x02K\x01X\x01\x00\x00\x00"
      "yq\x03K\x02u}X\x01\x00\x00\x00zK\x05sb."s);
  EXPECT_EQ(pickle.root().kind(), Kind::dict);
  EXPECT_EQ(pickle.root().find("y")->integer(), 2);
  EXPECT_EQ(pickle.root().state()->find("z")->integer(), 5);
}

TEST(Pickle, CallsAreDataOnly) {
  const Pickle pickle = read(
      "\x80\x02"
      "cposix\nsystem\nq\x00X\x1a\x00\x00\x00touch /tmp/ckptfs-executedq\x01\x85q\x02Rq\x03."s);
  EXPECT_EQ(pickle.root().kind(), Kind::object);
  EXPECT_EQ(pickle.root().name(), "posix.system");
  EXPECT_EQ((*pickle.root().arguments())[0].text(), "touch /tmp/ckptfs-executed");
  struct stat st {};
  EXPECT_NE(::stat("/tmp/ckptfs-executed", &st), 0);
}

// Opcodes that torch writes seldom, or did in older versions.
TEST(Pickle, RareOpcodes) {
  for (const char* set : {"\x80\x04\x8f(K\x01K\x02\x90.", "\x80\x04(K\x01K\x02\x91."}) {
    const Pickle pickle = read(set);
    EXPECT_EQ(pickle.root().kind(), Kind::set);
    ASSERT_EQ(pickle.root().size(), 2U);
    EXPECT_EQ(pickle.root()[1].integer(), 2);
  }
  EXPECT_EQ(read("\x80\x02K\x01K\x02\x30.").root().integer(), 1);                    // POP
  EXPECT_EQ(read("\x80\x02K\x01(\x30.").root().integer(), 1);                        // POP of a mark
  EXPECT_EQ(read("\x80\x02K\x01(K\x02K\x03\x31.").root().integer(), 1);              // POP_MARK
  EXPECT_EQ(read("\x80\x02K\x07\x32\x86.").root()[1].integer(), 7);                  // DUP
  EXPECT_EQ(read("\x80\x02T\x02\x00\x00\x00xy."s).root().text(), "xy");              // BINSTRING
  EXPECT_EQ(read("\x80\x02U\x02xy.").root().text(), "xy");                           // SHORT_BINSTRING
  EXPECT_EQ(read("\x80\x03\x42\x02\x00\x00\x00xy."s).root().kind(), Kind::bytes);    // BINBYTES
  EXPECT_EQ(read("\x80\x05\x96\x02\0\0\0\0\0\0\0xy."s).root().kind(), Kind::bytes);  // BYTEARRAY8
  const Pickle made = read("\x80\x04\x63m\nC\nK\x01\x85}\x92.");                     // NEWOBJ_EX
  EXPECT_EQ(made.root().name(), "m.C");
  EXPECT_EQ((*made.root().arguments())[0].integer(), 1);
}

TEST(Pickle, ATooLongOneIsNotRead) {
  const auto pickle = read_pickle("\x80\x02N." + std::string(Pickle::kMostBytes, '\0'));
  ASSERT_FALSE(pickle);
  EXPECT_EQ(pickle.error().errno_value(), EBADMSG);
}

TEST(Pickle, MayContainItself) {
  const Pickle pickle = read(
      "\x80\x02]q\x00h\x00"
      "a."s);
  ASSERT_EQ(pickle.root().size(), 1U);
  EXPECT_EQ(pickle.root()[0].index(), pickle.root().index());
}

TEST(Pickle, EveryTruncationIsAnErrorThatSaysWhere) {
  for (const std::string& bytes : {kProtocol2, kProtocol4}) {
    for (size_t size = 0; size < bytes.size(); ++size) {
      const auto cut = read_pickle(bytes.substr(0, size));
      ASSERT_FALSE(cut) << size;
      EXPECT_EQ(cut.error().errno_value(), EBADMSG);
      EXPECT_NE(cut.error().message().find("byte "), std::string::npos) << cut.error().message();
    }
  }
}

TEST(Pickle, BombsAreErrors) {
  // Each would make Python, or a careless reader, allocate or recurse without end.
  const std::string bombs[] = {
      "\x80\x02" + std::string(Pickle::kMostValues + 1, ']') + ".",  // more memory than is allowed
      "\x80\x02" + std::string(Pickle::kMostMarks + 1, '(') + ".",   // marks
      "\x80\x02Nr\xff\xff\xff\xff."s,                                // a memo of 2^32
      "\x80\x02X\xff\xff\xff\x7fx."s,                                // a text of 2^31
      "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."s,             // a text of 2^64
      "\x80\x02h\x05."s,                                             // a memo slot that was never written
      "\x80\x02R."s,                                                 // a call of nothing
      "\x80\x02(a."s,                                                // an item below a mark
      "\x80\x02Nb."s,                                                // a state for None
      "\x80\x02}(K\x01u."s,                                          // a key without a value
      "\x80\x02\x82\x01."s,  // an extension, whose meaning is known to one process only
      "I1\n."s,              // protocol 0
  };
  for (const std::string& bomb : bombs) {
    const auto pickle = read_pickle(bomb);
    ASSERT_FALSE(pickle) << bomb.substr(0, 20);
    EXPECT_EQ(pickle.error().errno_value(), EBADMSG);
  }
}

TEST(Pickle, WhatIsSharedCostsNothing) {
  // Each list contains the previous one twice, 60 times over: a reader that copies would make 2^60 items.
  std::string bytes = "\x80\x02]q\x00"s;
  for (char level = 1; level <= 60; ++level) {
    const std::string before = {'h', static_cast<char>(level - 1)};
    bytes += "](" + before + before + "eq" + level;
  }
  const auto pickle = read_pickle(bytes + '.');
  ASSERT_TRUE(pickle) << pickle.error().message();
  EXPECT_EQ(pickle.value().root().size(), 2U);
}

}  // namespace
}  // namespace ckptfs::meta::formats
