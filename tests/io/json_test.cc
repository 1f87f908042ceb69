#include "io/json.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <span>
#include <string>
#include <vector>

#include "io/fd.h"

namespace ckptfs::io {
namespace {

using nlohmann::json;

std::string nested(size_t depth, const std::string& inner = "") {
  return std::string(depth, '[') + inner + std::string(depth, ']');
}

int failure_of(const std::string& text, const JsonBounds& bounds = {}) {
  const auto parsed = parse_json(text, bounds);
  return parsed ? 0 : parsed.error().errno_value();
}

TEST(Json, IsReadAsItIs) {
  for (const std::string text : {R"({"a": [1, -2, 1.5e3, true, null, "x\"y\\"], "b": {}})", " [ ] ", "\n1\t",
                                 R"("\u00e9")", R"({"a b":"c  d","e":"\\"})", "[1 , 2]"}) {
    const auto parsed = parse_json(text, {});
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().message();
    EXPECT_EQ(parsed.value(), json::parse(text));
  }
}

TEST(Json, WhatIsNone) {
  for (const std::string text :
       {"", " ", "{", "[1", "[1 2]", "1 2", "nul", "NaN", "[1]]", "{\"a\" 1}", "\"", "'a'", "\xff"}) {
    EXPECT_EQ(failure_of(text), EBADMSG) << text;
  }
}

TEST(Json, HasBounds) {
  const JsonBounds bounds{.bytes = 200, .values = 10, .text = 20, .depth = 4};
  EXPECT_EQ(failure_of(nested(4), bounds), 0);
  EXPECT_EQ(failure_of(nested(5), bounds), EFBIG);
  EXPECT_EQ(failure_of("[[[[]]],[[[1]]]]", bounds), 0);  // closed lists do not count
  EXPECT_EQ(failure_of("[1,2,3,4,5,6,7,8,9,10]", bounds), 0);
  EXPECT_EQ(failure_of("[1,2,3,4,5,6,7,8,9,10,11]", bounds), EFBIG);
  EXPECT_EQ(failure_of("\"" + std::string(19, ',') + "\"", bounds), 0);
  EXPECT_EQ(failure_of("\"" + std::string(20, 'x') + "\"", bounds), EFBIG);
  EXPECT_EQ(failure_of("\"" + std::string(20, '\\') + "\"", bounds), EFBIG);
  EXPECT_EQ(failure_of(std::string(21, '1'), bounds), EFBIG);
  EXPECT_EQ(failure_of(std::string(150, ' ') + "1" + std::string(40, '\n'), bounds), 0);
  EXPECT_EQ(failure_of(std::string(201, ' '), bounds), EFBIG);
  EXPECT_NE(parse_json(nested(5), bounds).error().message().find("4 deep"), std::string::npos);
}

TEST(Json, HoweverDeepNothingHappens) {
  for (const char* const one : {"[", "{\"a\":"}) {
    std::string deep;
    for (size_t depth = 0; depth < 100000; ++depth) deep += one;
    EXPECT_EQ(failure_of(deep), EFBIG);
  }
}

TEST(Json, AsPythonWritesIt) {
  const JsonBounds python{.python = true};
  const auto parsed = parse_json(R"([NaN, Infinity, -Infinity, -1, "NaN", {"-Infinity": NaN}])", python);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed.value(), json::parse(R"([null, null, null, -1, "NaN", {"-Infinity": null}])"));
  for (const char* const text : {"Na", "NaNN", "[Infinit]", "-Inf", "-NaN", "N", "-"}) {
    EXPECT_EQ(failure_of(text, python), EBADMSG) << text;
  }
}

// Sums the numbers at the top level.
class Sum : public JsonVisitor {
 public:
  bool number_unsigned(number_unsigned_t number) override {
    sum += number;
    return number != 13 || fails(Error(EDOM, "thirteen"));
  }
  uint64_t sum = 0;
};

TEST(Json, OfAFileByPieces) {
  std::string text = "xx[0";  // reading starts at the third byte
  uint64_t expected = 0;
  for (uint64_t number = 100; number < 20000; ++number) {
    text += (number % 3 == 0 ? "\n ,  " : ",") + std::to_string(number);
    expected += number;
  }
  text += "]";
  const Fd file(::memfd_create("json", MFD_CLOEXEC));
  ASSERT_TRUE(write_full(file.get(), std::as_bytes(std::span(text)), 0));
  Sum sum;
  const auto read = read_json(file.get(), 2, text.size() - 2, {.values = kAnyNumber}, sum);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(sum.sum, expected);
  Sum cut;
  EXPECT_EQ(read_json(file.get(), 2, text.size() - 3, {.values = kAnyNumber}, cut).error().errno_value(), EBADMSG);
  Sum beyond;
  EXPECT_TRUE(read_json(file.get(), 2, text.size() + 5, {.values = kAnyNumber}, beyond)) << "the file ends before";
  Sum large;
  EXPECT_EQ(read_json(file.get(), 2, text.size() - 2, {.bytes = 1000}, large).error().errno_value(), EFBIG);
}

TEST(Json, TheVisitorsOwnErrorIsTold) {
  Sum sum;
  const auto read = read_json("[1, 13, 2]", {}, sum);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().errno_value(), EDOM);
  EXPECT_EQ(sum.sum, 14U);
}

}  // namespace
}  // namespace ckptfs::io
