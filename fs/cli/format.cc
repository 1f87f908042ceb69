#include "fs/cli/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "io/printable.h"

namespace ckptfs::fs::cli {
namespace {

std::string decimal(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string human_size(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  static constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value >= 100 || std::fabs(value - std::round(value)) < 0.05;
  return decimal(value, whole ? 0 : 1) + " " + kUnits[unit];
}

std::string human_duration(double seconds) {
  if (seconds < 0.001) return decimal(seconds * 1000, 2) + " ms";
  if (seconds < 0.01) return decimal(seconds * 1000, 1) + " ms";
  if (seconds < 0.9995) return decimal(seconds * 1000, 0) + " ms";
  if (seconds < 59.95) return decimal(seconds, 1) + " s";
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) + " min";
}

std::string human_age(int64_t seconds) {
  if (seconds < 0) return "0 s";  // a clock that was set back
  if (seconds < 120) return std::to_string(seconds) + " s";
  if (seconds < 2 * 3600) return std::to_string(seconds / 60) + " min";
  if (seconds < 2 * 86400) return std::to_string(seconds / 3600) + " h";
  return std::to_string(seconds / 86400) + " d";
}

int64_t seconds_of(std::chrono::system_clock::time_point time) { return std::chrono::system_clock::to_time_t(time); }

std::string utc_time(int64_t seconds) {
  const time_t time = seconds;
  std::tm parts{};
  char text[40];
  if (::gmtime_r(&time, &parts) == nullptr || std::strftime(text, sizeof(text), "%F %TZ", &parts) == 0) return "?";
  return text;
}

std::string counted(uint64_t count, const std::string& singular, const std::string& plural) {
  if (count == 1) return "1 " + singular;
  return std::to_string(count) + " " + (plural.empty() ? singular + "s" : plural);
}

std::string printable(const std::string& text) { return io::printable(text); }

std::string coloured(const std::string& text, Colour colour) {
  switch (colour) {
    case Colour::none:
      return text;
    case Colour::green:
      return "\033[32m" + text + "\033[0m";
    case Colour::yellow:
      return "\033[33m" + text + "\033[0m";
    case Colour::red:
      return "\033[31m" + text + "\033[0m";
  }
  return text;
}

std::string Table::text(bool with_colours) const {
  std::vector<std::vector<Cell>> lines(1);
  for (const Column& column : columns_) lines[0].push_back({column.title});
  lines.insert(lines.end(), rows_.begin(), rows_.end());

  std::vector<size_t> widths(columns_.size());
  for (auto& line : lines) {
    for (size_t i = 0; i < widths.size(); ++i) {
      line[i].text = printable(line[i].text);
      widths[i] = std::max(widths[i], width_of(line[i].text));
    }
  }
  std::string result;
  for (const auto& line : lines) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string padding(widths[i] - width_of(line[i].text), ' ');
      const std::string shown = with_colours ? coloured(line[i].text, line[i].colour) : line[i].text;
      if (i > 0) result += "  ";
      result += columns_[i].align == Align::right ? padding + shown : shown + padding;
    }
    while (result.ends_with(' ')) result.pop_back();
    result += "\n";
  }
  return result;
}

}  // namespace ckptfs::fs::cli
