// Small parts of texts. Stateless; any thread.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace ckptfs::io {

// The number that is all of the text, without a sign unless the type has one; nothing: it is none, or too large.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

// Without the spaces, tabs and ends of lines around it.
inline std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin));
}

// The texts of a list, with `between` between them.
template <class Texts>
std::string joined(const Texts& texts, std::string_view between = ", ") {
  std::string all;
  for (bool first = true; const auto& text : texts) {
    if (!std::exchange(first, false)) all += between;
    all += text;
  }
  return all;
}

}  // namespace ckptfs::io
