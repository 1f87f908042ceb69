#include "io/printable.h"

#include <gtest/gtest.h>

namespace ckptfs::io {
namespace {

TEST(Printable, WhatCanBePrintedStays) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("global_step1: 3 MiB"), "global_step1: 3 MiB");
  EXPECT_EQ(printable("\u00e4\u03b1\u2713\U0001f600\u00a0"), "\u00e4\u03b1\u2713\U0001f600\u00a0");
}

TEST(Printable, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("a\nb\r\t\x1b[31m\x7f"), "a\\x0ab\\x0d\\x09\\x1b[31m\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\u0085\u009b31m"), "\\xc2\\x85\\xc2\\x9b31m");
}

TEST(Printable, SoIsWhatIsNotUtf8) {
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m");                                             // CSI in eight bits
  EXPECT_EQ(printable("\xc0\x8a"), "\\xc0\\x8a");                    // a newline, overlong
  EXPECT_EQ(printable("\xe0\x80\x8a|"), "\\xe0\\x80\\x8a|");         // likewise
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last character
  EXPECT_EQ(printable("\xe2\x9c"), "\\xe2\\x9c");                    // cut off
}

}  // namespace
}  // namespace ckptfs::io
