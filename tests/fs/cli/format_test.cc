#include "fs/cli/format.h"

#include <gtest/gtest.h>

namespace ckptfs::fs::cli {
namespace {

TEST(Format, Sizes) {
  EXPECT_EQ(human_size(0), "0 B");
  EXPECT_EQ(human_size(1023), "1023 B");
  EXPECT_EQ(human_size(1024), "1 KiB");
  EXPECT_EQ(human_size(1536), "1.5 KiB");
  EXPECT_EQ(human_size(uint64_t{64} << 20), "64 MiB");
  EXPECT_EQ(human_size((uint64_t{1} << 30) - 1), "1 GiB");
  EXPECT_EQ(human_size(uint64_t{1234} << 30), "1.2 TiB");
  EXPECT_EQ(human_size(UINT64_MAX), "16 EiB");
}

TEST(Format, Durations) {
  EXPECT_EQ(human_duration(0.00044), "0.44 ms");
  EXPECT_EQ(human_duration(0.0044), "4.4 ms");
  EXPECT_EQ(human_duration(0.044), "44 ms");
  EXPECT_EQ(human_duration(2.31), "2.3 s");
  EXPECT_EQ(human_duration(59.99), "1 min 0 s");
  EXPECT_EQ(human_duration(200), "3 min 20 s");
  EXPECT_EQ(human_duration(7260), "2 h 1 min");
}

TEST(Format, Ages) {
  EXPECT_EQ(human_age(-5), "0 s");
  EXPECT_EQ(human_age(119), "119 s");
  EXPECT_EQ(human_age(120), "2 min");
  EXPECT_EQ(human_age(7200), "2 h");
  EXPECT_EQ(human_age(4 * 86400), "4 d");
}

TEST(Format, Counted) {
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(2, "entry", "entries"), "2 entries");
}

TEST(Format, ControlCharactersDoNotReachTheTerminal) {
  EXPECT_EQ(printable("a\033[2Jb\nc\x7f"), "a\\x1b[2Jb\\x0ac\\x7f");
  EXPECT_EQ(printable("grün"), "grün");
}

Table table() {
  Table table({{"TAG"}, {"SIZE", Table::Align::right}, {"PINNED"}});
  table.add({{"global_step100"}, {"1 KiB"}, {"pinned"}});
  table.add({{"é", Colour::green}, {"12 GiB"}, {""}});
  return table;
}

TEST(Format, TableFitsItsColumns) {
  EXPECT_EQ(table().text(false),
            "TAG               SIZE  PINNED\n"
            "global_step100   1 KiB  pinned\n"
            "é               12 GiB\n");
}

TEST(Format, ColoursAreOnlyThereWhenAskedFor) {
  EXPECT_NE(table().text(true).find("\033[32mé\033[0m"), std::string::npos);
  EXPECT_EQ(table().text(false).find('\033'), std::string::npos);
}

TEST(Format, TableCellsCannotBreakTheTable) {
  Table hostile({{"TAG"}});
  hostile.add({{"a\nb"}});
  EXPECT_EQ(hostile.text(false), "TAG\na\\x0ab\n");
}

}  // namespace
}  // namespace ckptfs::fs::cli
