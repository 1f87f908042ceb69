#include "meta/remote/remote_facts.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/json.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

constexpr const char* kRemoteKind = "remote";
constexpr size_t kMostFactsBytes = 4096;
constexpr io::JsonBounds kFactsBounds{.bytes = kMostFactsBytes, .values = 64, .text = 1024, .depth = 4};

std::string text_of_facts(const RemoteFacts& facts) {
  json object = new_document(kRemoteKind);
  object["id"] = facts.id;
  object["slots"] = facts.slots;
  object["host"] = facts.host;
  object["made"] = facts.made;
  return checked_line(object);
}

Result<RemoteFacts> parse_remote_facts(const std::string& text) {
  TRY_ASSIGN(const json object, parse_document(text, kRemoteKind, kFactsBounds));
  RemoteFacts facts;
  TRY_ASSIGN(facts.id, text_field(object, "id"));
  TRY_ASSIGN(const uint64_t slots, number_field(object, "slots", kMostSlots));
  TRY_ASSIGN(facts.host, text_field(object, "host"));
  TRY_ASSIGN(facts.made, text_field(object, "made"));
  if (slots == 0) return Error(EBADMSG, "its number of slots is 0");
  facts.slots = static_cast<uint32_t>(slots);
  return facts;
}

Result<RemoteFacts> fetch_facts(io::ObjectStore& store, const io::RequestLimits& limits) {
  const std::string object = store.url() + "/" + kFactsKey;
  auto text = io::get_text(store, kFactsKey, kMostFactsBytes, limits);
  const bool too_long = !text && text.error().errno_value() == EFBIG;
  if (!text && !too_long) return text.error();
  auto facts = too_long ? Result<RemoteFacts>(Error(EBADMSG, "it is too long")) : parse_remote_facts(text.value());
  if (facts) return facts;
  const Error& why = facts.error();
  if (why.errno_value() == EPROTO) return with_name(object, why);
  return Error(EPROTO,
               fmt::format("{}: ckptfs did not make it ({}): use another folder or prefix", object, why.message()));
}

std::string time_now() {
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

constexpr std::string_view kProbeContent = "0123456789 first", kOtherContent = "abcdefghij other";
constexpr size_t kProbeOffset = 3;

Error serves_not(const io::ObjectStore& store, std::string_view what) {
  return Error(EPROTO, fmt::format("{}: {}", store.url(), what));
}

Result<> probe_make(io::ObjectStore& store, const std::string& key, const io::RequestLimits& limits) {
  TRY(store.put(key, io::content_of(kProbeContent), io::PutMode::make, limits));
  TRY_ASSIGN(const bool replaced, io::make_object(store, key, kOtherContent, limits));
  TRY_ASSIGN(const std::string there, io::get_text(store, key, kProbeContent.size(), limits));
  if (!replaced && there == kProbeContent) return success();
  return serves_not(store,
                    "it replaces an object that was to be made only if there is none (If-None-Match: *). Pushes from "
                    "several machines would destroy each other's commits. Update the server, or use another one");
}

Result<> probe_range(io::ObjectStore& store, const std::string& key, const io::RequestLimits& limits) {
  std::string piece(4, '\0');
  TRY_ASSIGN(const size_t got, store.get(key, kProbeOffset, std::as_writable_bytes(std::span(piece)), limits));
  if (got == piece.size() && piece == kProbeContent.substr(kProbeOffset, piece.size())) return success();
  return serves_not(store,
                    "it answers a request for a range of an object with something else. Use a server, or a proxy "
                    "before it, that honours ranges");
}

Result<> probe_list(io::ObjectStore& store, const std::string& key, const io::RequestLimits& limits) {
  TRY_ASSIGN(const bool listed, io::is_listed(store, key, limits));
  if (listed) return success();
  return serves_not(store, "an object that was just made is not in its list. Use a server whose lists are consistent");
}

Result<> probe_all(io::ObjectStore& store, const std::string& key, const io::RequestLimits& limits) {
  TRY(probe_make(store, key, limits));
  TRY(probe_range(store, key, limits));
  TRY(probe_list(store, key, limits));
  TRY(store.find_check(key + "-check", limits));
  return refuse_first_format(store, limits);  // only now: a put makes the bucket, in some servers
}

}  // namespace

// What ckptfs made before its first release had parts/ at its top, and chunks in packs.
Result<> refuse_first_format(io::ObjectStore& store, const io::RequestLimits& limits) {
  TRY_ASSIGN(const io::ObjectPage page, store.list("parts/", "", limits));
  const bool is_old = std::ranges::any_of(page.objects, [](const io::ObjectInfo& object) {
    return parse_push(std::string_view(object.key).substr(std::string_view("parts/").size())).has_value();
  });
  if (!is_old) return success();
  return Error(EPROTO, store.url() +
                           ": a ckptfs before 0.1.0 made it, of version 1 of the format, and this one knows "
                           "version 2: use another folder or prefix, and fetch its steps with that ckptfs");
}

Result<RemoteFacts> read_facts(io::ObjectStore& store, const io::RequestLimits& limits) {
  TRY_ASSIGN(const bool there, io::is_listed(store, kFactsKey, limits));
  if (there) return fetch_facts(store, limits);
  TRY(refuse_first_format(store, limits));
  return Error(ENOENT, store.url() + ": nothing was pushed there yet: it has no " + std::string(kFactsKey));
}

Result<RemoteFacts> found_remote(io::ObjectStore& store, uint32_t slots, const std::string& host,
                                 const io::RequestLimits& limits) {
  if (slots == 0 || slots > kMostSlots) return Error(EINVAL, fmt::format("a remote has 1 to {} slots", kMostSlots));
  TRY(refuse_first_format(store, limits));
  const RemoteFacts ours{new_id(), slots, host, time_now()};
  TRY_ASSIGN(const bool made, io::make_object(store, kFactsKey, text_of_facts(ours), limits));
  if (made) return ours;
  TRY_ASSIGN(RemoteFacts facts, fetch_facts(store, limits));
  if (facts.slots == slots) return facts;
  return Error(EEXIST, fmt::format("{}: {} made it for {} slots, and {} says {}. All machines of a run name the same "
                                   "number of slots; another run needs another prefix",
                                   store.url(), io::printable(facts.host), facts.slots, io::printable(host), slots));
}

Result<> probe_store(io::ObjectStore& store, const io::RequestLimits& limits) {
  const std::string key = kProbe + new_id();
  auto probed = probe_all(store, key, limits);
  auto removed = store.remove(key, limits);
  return probed ? removed : probed;
}

}  // namespace ckptfs::meta::remote
