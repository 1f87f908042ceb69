// Formats numbers, times and tables for people. Pure functions and one plain value; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ckptfs::fs::cli {

std::string human_size(uint64_t bytes);                          // "512 B", "1.5 GiB"
std::string human_duration(double seconds);                      // "0.4 ms", "2.3 s", "3 min 20 s"
std::string human_age(int64_t seconds);                          // "5 s", "3 min", "2 h", "4 d"
std::string utc_time(int64_t seconds);                           // since 1970: "2026-11-26 12:00:00Z"
int64_t seconds_of(std::chrono::system_clock::time_point time);  // since 1970
std::string counted(uint64_t count, const std::string& singular,
                    const std::string& plural = {});  // "1 file", "2 files"

// Escapes control characters (io/printable.h). A name may contain any, and a terminal would obey them.
std::string printable(const std::string& text);

enum class Colour { none, green, yellow, red };
std::string coloured(const std::string& text, Colour colour);

struct Cell {
  std::string text;
  Colour colour = Colour::none;
};

// Columns as wide as their widest cell, two spaces between them. Widths count code points.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // `row` has one cell for each column.
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  std::string text(bool with_colours) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace ckptfs::fs::cli
