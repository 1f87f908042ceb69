#include "meta/remote/commit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "io/json.h"
#include "io/printable.h"
#include "meta/names.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

constexpr const char *kCommitKind = "commit", *kVoidKind = "void";
constexpr uint64_t kMostCommitBytes = uint64_t{16} << 20;
constexpr io::JsonBounds kCommitBounds{.bytes = kMostCommitBytes, .values = 1 << 20, .text = 1 << 16, .depth = 6};

json json_of(const PartName& part) {
  return {{"push", part.push.text()},
          {"digest", io::hex_of(part.digest)},
          {"size", part.size},
          {"files", part.files},
          {"bytes", part.bytes}};
}

Result<PartName> parse_part_name(const json& object) {
  if (!object.is_object()) return Error(EBADMSG, "its \"parts\" are none");
  PartName part;
  TRY_ASSIGN(part.push, push_field(object, "push"));
  TRY_ASSIGN(part.digest, digest_field(object, "digest"));
  TRY_ASSIGN(part.size, number_field(object, "size"));
  TRY_ASSIGN(part.files, number_field(object, "files"));
  TRY_ASSIGN(part.bytes, number_field(object, "bytes"));
  return part;
}

// One part of each slot, all of one tag.
Result<PartList> parse_parts(const json& object, const std::string& tag) {
  TRY_ASSIGN(const json* const list, list_field(object, "parts"));
  PartList parts;
  for (const json& one : *list) {
    TRY_ASSIGN(PartName part, parse_part_name(one));
    if (part.push.tag != tag || part.push.slot != parts.size()) {
      return Error(EBADMSG, fmt::format("part {} of its \"parts\" is of another slot or step: {}", parts.size(),
                                        io::printable(part.push.text())));
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return Error(EBADMSG, "its \"parts\" are empty");
  return parts;
}

Result<Commit> commit_of(const std::string& text) {
  if (text.size() <= kMostVoidBytes) return Error(EBADMSG, "it is too short for a commit");
  TRY_ASSIGN(const json object, parse_document(text, kCommitKind, kCommitBounds));
  Commit commit;
  TRY_ASSIGN(const std::string name, text_field(object, "name"));
  const auto decision = parse_decision(name);
  if (!decision) return Error(EBADMSG, "its \"name\" is none of a decision: " + io::printable(name));
  commit.name = *decision;
  TRY_ASSIGN(commit.parts, parse_parts(object, commit.name.tag));
  if (commit.parts.front().push != commit.name.lead()) {
    return Error(EBADMSG, "the part of slot 0 is not the one that it is named by");
  }
  TRY_ASSIGN(commit.notes, texts_field(object, "notes"));
  TRY_ASSIGN(commit.host, text_field(object, "host"));
  return commit;
}

}  // namespace

std::string void_text() { return checked_line(new_document(kVoidKind)); }

std::string text_of(const Commit& commit) {
  json object = new_document(kCommitKind);
  object["name"] = commit.name.text();
  object["host"] = commit.host;
  json& parts = object["parts"] = json::array();
  for (const PartName& part : commit.parts) parts.push_back(json_of(part));
  object["notes"] = commit.notes;
  return checked_line(object);
}

Result<Commit> parse_commit(const std::string& text, const std::string& key) { return with_name(key, commit_of(text)); }

uint64_t CommittedStep::number() const { return last_number_in(decision.tag).value_or(0); }

std::string CommittedStep::name() const {
  return ordinal == 1 ? decision.tag : fmt::format("{}~{}", decision.tag, ordinal);
}

bool Decisions::note(const io::ObjectInfo& object) {
  if (const auto name = parse_gone_key(object.key)) {
    gone.emplace(*name, object.changed);
    return true;
  }
  const auto decision = parse_step_key(object.key);
  if (decision) decided[*decision] = {object.size > kMostVoidBytes, object.changed};
  return decision.has_value();
}

Result<std::vector<CommittedStep>> Decisions::steps(const std::string& url) const {
  for (const auto& [decision, when] : gone) {
    if (decided.contains(decision)) continue;
    return Error(EIO, fmt::format("{}/{} is missing in the list, and must be there: the list is not whole", url,
                                  io::printable(step_key(decision))));
  }
  std::vector<CommittedStep> found;
  for (const auto& [decision, one] : decided) {
    if (one.commit) found.push_back({decision, 0, one.changed, gone.contains(decision)});
  }
  const auto place = [](const CommittedStep& step) {
    return std::tie(step.decision.order, step.committed, step.decision.tag, step.decision.id);
  };
  std::ranges::sort(found, {}, place);
  std::map<std::string_view, uint64_t> of_tag;
  for (CommittedStep& step : found) step.ordinal = ++of_tag[step.decision.tag];
  return found;
}

Result<std::vector<CommittedStep>> list_steps(io::ObjectStore& store, const io::RequestLimits& limits) {
  Decisions decisions;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    decisions.note(object);
    return success();
  };
  TRY(io::for_each_object(store, kGone, note, limits));
  TRY(io::for_each_object(store, kSteps, note, limits));
  return decisions.steps(store.url());
}

Result<CommittedStep> find_step(io::ObjectStore& store, const std::string& name, const io::RequestLimits& limits) {
  TRY_ASSIGN(const auto steps, list_steps(store, limits));
  const auto found = std::ranges::find(steps, name, &CommittedStep::name);
  if (found != steps.end()) return *found;
  return Error(ENOENT, fmt::format("{}: there is no committed step {}", store.url(), io::printable(name)));
}

std::optional<CommittedStep> newest(const std::vector<CommittedStep>& steps) {
  const auto found = std::find_if(steps.rbegin(), steps.rend(), [](const CommittedStep& step) { return !step.gone; });
  return found == steps.rend() ? std::nullopt : std::optional(*found);
}

std::optional<CommittedStep> newest_of_tag(const std::vector<CommittedStep>& steps, const std::string& tag) {
  const auto found =
      std::find_if(steps.rbegin(), steps.rend(), [&](const CommittedStep& step) { return step.decision.tag == tag; });
  return found == steps.rend() ? std::nullopt : std::optional(*found);
}

Result<Decided> look_up(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits) {
  const std::string key = step_key(decision);
  Decided decided = Decided::nothing;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    if (object.key == key) decided = object.size > kMostVoidBytes ? Decided::commit : Decided::voided;
    return success();
  };
  TRY(io::for_each_object(store, key, note, limits));
  return decided;
}

Result<Commit> fetch_commit(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits) {
  const std::string key = step_key(decision), object = store.url() + "/" + key;
  TRY_ASSIGN(const std::string text, io::get_text(store, key, kMostCommitBytes, limits));
  TRY_ASSIGN(Commit commit, parse_commit(text, object));
  if (commit.name != decision) return with_name(object, Error(EBADMSG, "it is the commit of another save"));
  return commit;
}

}  // namespace ckptfs::meta::remote
