#include "meta/remote/tombstone.h"

#include <fmt/format.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/json.h"
#include "io/log.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/part.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

constexpr const char* kTombstoneKind = "tombstone";
constexpr uint64_t kMostTombstoneBytes = uint64_t{8} << 20;
constexpr io::JsonBounds kTombstoneBounds{.bytes = kMostTombstoneBytes, .values = 1 << 18, .text = 1 << 16, .depth = 4};

Result<Tombstone> tombstone_of(const std::string& text) {
  TRY_ASSIGN(const json object, parse_document(text, kTombstoneKind, kTombstoneBounds));
  Tombstone tombstone;
  TRY_ASSIGN(const std::string name, text_field(object, "name"));
  const auto decision = parse_decision(name);
  if (!decision) return Error(EBADMSG, "its \"name\" is none of a decision: " + io::printable(name));
  tombstone.name = *decision;
  TRY_ASSIGN(tombstone.host, text_field(object, "host"));
  TRY_ASSIGN(tombstone.why, text_field(object, "why"));
  TRY_ASSIGN(const auto saved, texts_field(object, "saved"));
  for (const std::string& one : saved) {
    const auto digest = io::digest_from_hex(one);
    if (!digest) return Error(EBADMSG, "its \"saved\" are no digests");
    tombstone.saved.push_back(*digest);
  }
  return tombstone;
}

Result<std::vector<io::Digest>> saved_in(io::ObjectStore& store, const DecisionName& decision,
                                         const io::RequestLimits& limits) {
  TRY_ASSIGN(const Commit commit, fetch_commit(store, decision, limits));
  std::vector<io::Digest> saved;
  for (const PartName& part : commit.parts) {
    TRY_ASSIGN(const PartHeader header, fetch_part_header(store, part.push, limits));
    saved.push_back(header.saved);
  }
  return saved;
}

}  // namespace

std::string text_of(const Tombstone& tombstone) {
  json object = new_document(kTombstoneKind);
  object["name"] = tombstone.name.text();
  object["host"] = tombstone.host;
  object["why"] = tombstone.why;
  json& saved = object["saved"] = json::array();
  for (const io::Digest& one : tombstone.saved) saved.push_back(io::hex_of(one));
  return checked_line(object);
}

Result<Tombstone> parse_tombstone(const std::string& text, const std::string& key) {
  return with_name(key, tombstone_of(text));
}

Result<> remove_step(io::ObjectStore& store, const CommittedStep& step, const std::string& host, const std::string& why,
                     const io::RequestLimits& limits) {
  Tombstone tombstone{step.decision, host, why, {}};
  auto saved = saved_in(store, step.decision, limits);
  if (!saved && !is_damage(saved.error())) return saved.error();
  if (saved) {
    tombstone.saved = std::move(saved).value();
  } else {
    log::warn("{}: it is damaged, and is removed: {}", io::printable(step.name()), saved.error().message());
  }
  TRY(io::make_object(store, gone_key(step.decision), text_of(tombstone), limits));
  return success();
}

Result<std::optional<Tombstone>> find_removed(io::ObjectStore& store, const std::string& tag, uint32_t slot,
                                              const io::Digest& saved, const Order& order,
                                              const io::RequestLimits& limits) {
  const std::optional<Tombstone> none;
  TRY_ASSIGN(const auto steps, list_steps(store, limits));
  const auto last = newest_of_tag(steps, tag);
  if (!last || !last->gone) return none;
  if (slot == 0 && last->decision.order != order) return none;
  const std::string key = gone_key(last->decision);
  TRY_ASSIGN(const std::string text, io::get_text(store, key, kMostTombstoneBytes, limits));
  TRY_ASSIGN(Tombstone tombstone, parse_tombstone(text, store.url() + "/" + key));
  if (slot >= tombstone.saved.size() || tombstone.saved[slot] != saved) return none;
  return std::optional(std::move(tombstone));
}

}  // namespace ckptfs::meta::remote
