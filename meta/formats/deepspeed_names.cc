#include "meta/formats/deepspeed_names.h"

#include <charconv>

namespace ckptfs::meta::formats {
namespace {

constexpr std::string_view kSwapSuffix = ".tensor.swp";

bool skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool drop(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

template <class T>
std::optional<T> take_number(std::string_view& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

}  // namespace

std::optional<StatesName> parse_states_name(std::string_view name) {
  StatesName found;
  if (drop(name, "_optim_states.pt")) {
    found.kind = StatesName::Kind::optimizer;
  } else if (!drop(name, "_model_states.pt")) {
    return std::nullopt;
  }
  skip(name, "bf16_");
  if (skip(name, "zero_pp_rank_")) {
    found.rank = take_number<unsigned>(name);
    if (!found.rank || !skip(name, "_")) return std::nullopt;
  }
  if (!skip(name, "mp_rank_")) return std::nullopt;
  const auto model_rank = take_number<unsigned>(name);
  if (!model_rank || !name.empty()) return std::nullopt;
  found.model_rank = *model_rank;
  return found;
}

std::optional<GroupName> parse_group_name(std::string_view name) {
  GroupName found;
  if (!drop(name, kSwapSuffix)) return std::nullopt;
  const size_t dash = name.find('-');
  found.state = dash == std::string_view::npos ? "fp32" : std::string(name.substr(0, dash));
  if (dash != std::string_view::npos) name.remove_prefix(dash + 1);
  const auto first = take_number<uint64_t>(name);
  if (!first || !skip(name, "_")) return std::nullopt;
  const auto last = take_number<uint64_t>(name);
  if (!last || !name.empty() || found.state.empty()) return std::nullopt;
  found.first = *first;
  found.last = *last;
  return found;
}

std::optional<uint64_t> parse_param_name(std::string_view name) {
  if (!drop(name, "_param" + std::string(kSwapSuffix))) return std::nullopt;
  const auto number = take_number<uint64_t>(name);
  return name.empty() ? number : std::nullopt;
}

}  // namespace ckptfs::meta::formats
