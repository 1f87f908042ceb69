#include "meta/remote/look.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/fd.h"
#include "io/json.h"
#include "io/printable.h"
#include "io/retry.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

constexpr const char* kLookKind = "look";
constexpr uint64_t kMostLookBytes = uint64_t{64} << 20;
constexpr io::JsonBounds kLookBounds{.bytes = kMostLookBytes, .values = 1 << 21, .text = 1 << 12, .depth = 8};

json json_of_tag(const std::string& tag, const Look::Tag& seen) {
  return {{"tag", tag}, {"decided", seen.decided}, {"gone", seen.gone}};
}

Result<> parse_tags(const json& object, Look& look) {
  TRY_ASSIGN(const json* const tags, list_field(object, "tags"));
  for (const json& one : *tags) {
    if (!one.is_object()) return Error(EBADMSG, "its \"tags\" are none");
    TRY_ASSIGN(const std::string tag, text_field(one, "tag"));
    Look::Tag& seen = look.tags[tag];
    TRY_ASSIGN(seen.decided, number_field(one, "decided"));
    TRY_ASSIGN(const json* const gone, list_field(one, "gone"));
    for (const json& n : *gone) {
      if (!n.is_number_unsigned()) return Error(EBADMSG, "it has a wrong number");
      seen.gone.insert(n.get<uint64_t>());
    }
  }
  return success();
}

// The ranges of a look may overlap, and a push may come twice, since a list may have named a pack twice.
Result<> add_garbage(const json& range, PackRanges& ranges) {
  const auto is_pack = [](const json& one) { return one.is_number_unsigned() && one.get<uint64_t>() <= UINT32_MAX; };
  if (!range.is_array() || range.size() != 2 || !std::ranges::all_of(range, is_pack))
    return Error(EBADMSG, "its \"packs\" are no ranges");
  ranges.emplace_back(range[0].get<uint32_t>(), range[1].get<uint32_t>());
  return success();
}

Result<> parse_garbage(const json& object, Look& look) {
  TRY_ASSIGN(const json* const garbage, list_field(object, "garbage"));
  for (const json& one : *garbage) {
    if (!one.is_object()) return Error(EBADMSG, "its \"garbage\" is none");
    TRY_ASSIGN(const PushName push, push_field(one, "push"));
    TRY_ASSIGN(const json* const packs, list_field(one, "packs"));
    PackRanges& ranges = look.garbage[push];
    for (const json& range : *packs) TRY(add_garbage(range, ranges));
  }
  return success();
}

Result<Look> look_of(const std::string& text, uint64_t n) {
  TRY_ASSIGN(const json object, parse_document(text, kLookKind, kLookBounds));
  Look look;
  look.n = n;
  TRY_ASSIGN(look.host, text_field(object, "host"));
  TRY_ASSIGN(look.restored, text_field(object, "restored"));
  TRY(parse_tags(object, look));
  TRY(parse_garbage(object, look));
  TRY_ASSIGN(const auto undecided, pushes_field(object, "undecided"));
  TRY_ASSIGN(const auto needless_parts, pushes_field(object, "needless_parts"));
  look.undecided = {undecided.begin(), undecided.end()};
  look.needless_parts = {needless_parts.begin(), needless_parts.end()};
  return look;
}

Error is_missing(const std::string& url, const std::string& key, const Look& look) {
  return Error(EIO, fmt::format("{}/{} was there when {} looked last, and is not listed now. Either the list is not "
                                "whole, and this passes; or somebody deleted it, or the store was restored from an "
                                "older copy. Nothing is removed there until it is back. If you restored the store: "
                                "ckptfs remote gc --restored {}",
                                url, io::printable(key), io::printable(look.host), url));
}

// Is `later` what `earlier` is, with more words?
bool was_restored_since(const std::string& earlier, const std::string& later) {
  return later.size() > earlier.size() && later.starts_with(earlier) &&
         (earlier.empty() || later[earlier.size()] == ' ');
}

}  // namespace

std::string text_of(const Look& look) {
  json object = new_document(kLookKind);
  object["host"] = look.host;
  object["restored"] = look.restored;
  json& tags = object["tags"] = json::array();
  for (const auto& [tag, seen] : look.tags) tags.push_back(json_of_tag(tag, seen));
  json& garbage = object["garbage"] = json::array();
  for (const auto& [push, ranges] : look.garbage) garbage.push_back({{"push", push.text()}, {"packs", ranges}});
  object["undecided"] = texts_of_pushes(look.undecided);
  object["needless_parts"] = texts_of_pushes(look.needless_parts);
  return line_of(object);
}

Result<Look> parse_look(const std::string& text, uint64_t n, const std::string& key) {
  return with_name(key, look_of(text, n));
}

Result<Look> fetch_look(io::ObjectStore& store, uint64_t n, const io::RequestLimits& limits) {
  const std::string key = look_key(n);
  TRY_ASSIGN(const std::string text, io::get_text(store, key, kMostLookBytes, limits));
  return parse_look(text, n, store.url() + "/" + key);
}

Result<std::optional<Look>> read_memory(const std::string& file) {
  TRY_ASSIGN(const auto text, none_if_gone(io::read_file(file)));
  if (!text) return std::optional<Look>();
  auto look = parse_look(*text, 1, file);
  if (look) return std::optional(std::move(look).value());
  return Error(look.error().errno_value(), look.error().message() +
                                               ". It says what this machine has seen in the remote. Without it nothing "
                                               "can go wrong but that a store which was rolled back is not noticed: "
                                               "remove the file to go on");
}

Result<> write_memory(const std::string& file, const Look& look) {
  const std::string folder = std::filesystem::path(file).parent_path();
  TRY_ASSIGN(const io::Fd lock, io::open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY));
  if (io::retry_interrupted([&] { return ::flock(lock.get(), LOCK_EX); }) != 0) return last_error(folder);
  return io::replace_file(file, text_of(look));
}

Result<> check_decisions(const Look& look, const Inventory& inventory, const std::string& url) {
  for (const auto& [tag, seen] : look.tags) {
    const auto listed = inventory.decisions.find(tag);
    const bool is_listed = listed != inventory.decisions.end();
    // steps_of() has made certain that there is no gap before the last one.
    const uint64_t decided = is_listed && !listed->second.decided.empty() ? listed->second.decided.rbegin()->first : 0;
    if (decided < seen.decided) return is_missing(url, step_key({tag, decided + 1}), look);
    for (const uint64_t n : seen.gone) {
      if (!is_listed || !listed->second.gone.contains(n)) return is_missing(url, gone_key({tag, n}), look);
    }
  }
  return success();
}

Result<> check_memory(const Look& memory, const Look& last, const Inventory& inventory, const std::string& url) {
  if (was_restored_since(memory.restored, last.restored)) return success();
  if (memory.restored != last.restored) return is_missing(url, look_key(memory.n), memory);
  return check_decisions(memory, inventory, url);
}

}  // namespace ckptfs::meta::remote
