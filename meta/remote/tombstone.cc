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
  TRY_ASSIGN(tombstone.name.tag, text_field(object, "tag"));
  TRY_ASSIGN(tombstone.name.n, number_field(object, "n"));
  TRY_ASSIGN(tombstone.host, text_field(object, "host"));
  TRY_ASSIGN(tombstone.why, text_field(object, "why"));
  TRY_ASSIGN(const auto contents, texts_field(object, "contents"));
  for (const std::string& content : contents) {
    const auto digest = io::digest_from_hex(content);
    if (!digest) return Error(EBADMSG, "its \"contents\" are no digests");
    tombstone.contents.push_back(*digest);
  }
  return tombstone;
}

Result<std::vector<io::Digest>> contents_of(io::ObjectStore& store, const DecisionName& decision,
                                            const io::RequestLimits& limits) {
  TRY_ASSIGN(const Commit commit, fetch_commit(store, decision, limits));
  std::vector<io::Digest> contents;
  for (const PartName& part : commit.parts) {
    TRY_ASSIGN(const PartHeader header, fetch_part_header(store, part.push, limits));
    contents.push_back(header.content);
  }
  return contents;
}

}  // namespace

std::string text_of(const Tombstone& tombstone) {
  json object = new_document(kTombstoneKind);
  object["tag"] = tombstone.name.tag;
  object["n"] = tombstone.name.n;
  object["host"] = tombstone.host;
  object["why"] = tombstone.why;
  json& contents = object["contents"] = json::array();
  for (const io::Digest& content : tombstone.contents) contents.push_back(io::hex_of(content));
  return line_of(object);
}

Result<Tombstone> parse_tombstone(const std::string& text, const std::string& key) {
  return with_name(key, tombstone_of(text));
}

Result<> remove_step(io::ObjectStore& store, const CommittedStep& step, const std::string& host, const std::string& why,
                     const io::RequestLimits& limits) {
  Tombstone tombstone{step.decision, host, why, {}};
  auto contents = contents_of(store, step.decision, limits);
  if (!contents && !is_damage(contents.error())) return contents.error();
  if (contents) {
    tombstone.contents = std::move(contents).value();
  } else {
    log::warn("{}: it is damaged, and is removed: {}", io::printable(step.name()), contents.error().message());
  }
  TRY(io::make_object(store, gone_key(step.decision), text_of(tombstone), limits));
  return success();
}

Result<std::optional<Tombstone>> find_removed(io::ObjectStore& store, const std::string& tag, uint32_t slot,
                                              const io::Digest& content, const io::RequestLimits& limits) {
  const std::optional<Tombstone> none;
  TRY_ASSIGN(const TagDecisions decisions, list_decisions(store, tag, limits));
  if (decisions.commits.empty() || !decisions.commits.back().gone) return none;
  const std::string key = gone_key(decisions.commits.back().decision);
  TRY_ASSIGN(const std::string text, io::get_text(store, key, kMostTombstoneBytes, limits));
  TRY_ASSIGN(Tombstone tombstone, parse_tombstone(text, store.url() + "/" + key));
  if (slot >= tombstone.contents.size() || tombstone.contents[slot] != content) return none;
  return std::optional(std::move(tombstone));
}

}  // namespace ckptfs::meta::remote
