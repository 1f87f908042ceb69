#include "meta/remote/commit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "io/json.h"
#include "io/printable.h"
#include "io/text.h"
#include "meta/names.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

constexpr const char *kVoteKind = "vote", *kCommitKind = "commit", *kVoidKind = "void";
constexpr const char* kEnded = "ended";
constexpr uint64_t kMostCommitBytes = uint64_t{16} << 20;
constexpr io::JsonBounds kCommitBounds{.bytes = kMostCommitBytes, .values = 1 << 20, .text = 1 << 16, .depth = 6};
constexpr io::JsonBounds kSmallBounds{.bytes = 4096, .values = 64, .text = 1024, .depth = 4};

json json_of(const PartName& part) {
  return {{"push", part.push.text()}, {"number", part.number}, {"digest", io::hex_of(part.digest)},
          {"size", part.size},        {"files", part.files},   {"bytes", part.bytes}};
}

Result<PartName> parse_part_name(const json& object) {
  if (!object.is_object()) return Error(EBADMSG, "its \"parts\" are none");
  PartName part;
  TRY_ASSIGN(part.push, push_field(object, "push"));
  TRY_ASSIGN(part.number, number_field(object, "number"));
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

bool is_late(uint64_t bytes) { return bytes > kMostVoidBytes && bytes % kLateBytes == 0; }

Result<Commit> commit_of(const std::string& text) {
  if (text.size() <= kMostVoidBytes) return Error(EBADMSG, "it is too short for a commit");
  TRY_ASSIGN(const json object, parse_document(text, kCommitKind, kCommitBounds));
  Commit commit;
  TRY_ASSIGN(commit.name.tag, text_field(object, "tag"));
  TRY_ASSIGN(commit.name.n, number_field(object, "n"));
  TRY_ASSIGN(commit.parts, parse_parts(object, commit.name.tag));
  TRY_ASSIGN(commit.notes, texts_field(object, "notes"));
  TRY_ASSIGN(commit.host, text_field(object, "host"));
  commit.late = is_late(text.size());
  return commit;
}

Result<Vote> vote_of(const std::string& text) {
  TRY_ASSIGN(const json object, parse_document(text, kVoteKind, kSmallBounds));
  TRY_ASSIGN(const io::Digest parts, digest_field(object, "parts"));
  return Vote{parts};
}

// "<slot>.<id>", to which the tag belongs that is given.
Result<Void> void_of(const std::string& text, const std::string& tag) {
  if (text.size() > kMostVoidBytes) return Error(EBADMSG, "it is too long for a void");
  TRY_ASSIGN(const json object, parse_document(text, kVoidKind, kSmallBounds));
  Void nothing;
  TRY_ASSIGN(nothing.parts, digest_field(object, "parts"));
  if (!object.contains(kEnded)) return nothing;
  TRY_ASSIGN(const std::string ended, text_field(object, kEnded));
  nothing.ended = parse_push(tag + "/" + ended);
  if (!nothing.ended) return Error(EBADMSG, "what it ended is no push: " + io::printable(ended));
  return nothing;
}

Error not_whole(const std::string& url, const std::string& key) {
  return Error(EIO, fmt::format("{}/{} is missing in the list, and must be there: the list is not whole", url,
                                io::printable(key)));
}

// `tags`: of all ("") or one ("<tag>/").
Result<DecisionsByTag> list_decisions_by_tag(io::ObjectStore& store, const std::string& tags,
                                             const io::RequestLimits& limits) {
  DecisionsByTag found;
  const auto note = [&](const io::ObjectInfo& object) -> Result<> {
    note_decision(found, object);
    return success();
  };
  TRY(io::for_each_object(store, kGone + tags, note, limits));
  TRY(io::for_each_object(store, kSteps + tags, note, limits));
  return found;
}

// The commits of one tag, in the order of their numbers.
Result<TagDecisions> decisions_of(const std::string& url, const std::string& tag, const DecisionsOfTag& found) {
  TagDecisions decisions;
  for (const auto& [n, one] : found.decided) {
    if (n != decisions.undecided) return not_whole(url, step_key({tag, decisions.undecided}));
    ++decisions.undecided;
    if (!one.commit) continue;
    const uint64_t ordinal = decisions.commits.size() + 1;
    decisions.commits.push_back({{tag, n}, ordinal, one.changed, found.gone.contains(n), one.late});
  }
  for (const auto& [n, when] : found.gone) {
    if (n >= decisions.undecided) return not_whole(url, step_key({tag, n}));
  }
  return decisions;
}

// `by_time`: by the time of their commits. A late one goes before those that have a higher number, back to the first
// that has not, and before one at least.
std::vector<CommittedStep> in_order(const std::vector<CommittedStep>& by_time) {
  std::vector<CommittedStep> ordered;
  for (const CommittedStep& step : by_time) {
    auto at = ordered.end();
    if (step.late && !ordered.empty()) --at;
    while (step.late && at != ordered.begin() && std::prev(at)->number() > step.number()) --at;
    ordered.insert(at, step);
  }
  return ordered;
}

// "<tag>" or "<tag>~<ordinal>".
std::optional<std::pair<std::string, uint64_t>> parse_step_name(const std::string& name) {
  const size_t tilde = name.find('~');
  const std::string tag = name.substr(0, tilde);
  if (!check_tag(tag)) return std::nullopt;
  if (tilde == std::string::npos) return std::pair(tag, uint64_t{1});
  const std::string digits = name.substr(tilde + 1);
  const auto ordinal = io::parse_number<uint64_t>(digits);
  if (!ordinal || *ordinal < 2 || std::to_string(*ordinal) != digits) return std::nullopt;
  return std::pair(tag, *ordinal);
}

}  // namespace

io::Digest digest_of(const PartList& parts) {
  std::string bytes = "ckptfs parts 1\n";
  const auto append = [&bytes](uint64_t number, size_t width) {
    for (size_t at = 0; at < width; ++at) bytes += static_cast<char>(number >> (8 * at) & 0xff);
  };
  for (const PartName& part : parts) {
    const std::string push = part.push.text();
    append(push.size(), 4);
    bytes += push;
    append(part.number, 8);
    bytes.append(reinterpret_cast<const char*>(part.digest.data()), part.digest.size());
    append(part.size, 8);
  }
  return io::digest_of(std::as_bytes(std::span(bytes)));
}

std::string text_of(const Vote& vote) {
  json object = new_document(kVoteKind);
  object["parts"] = io::hex_of(vote.parts);
  return line_of(object);
}

std::string text_of(const Void& nothing) {
  json object = new_document(kVoidKind);
  object["parts"] = io::hex_of(nothing.parts);
  if (nothing.ended) object[kEnded] = fmt::format("{}.{}", nothing.ended->slot, nothing.ended->id);
  return line_of(object);
}

std::string text_of(const Commit& commit) {
  json object = new_document(kCommitKind);
  object["tag"] = commit.name.tag;
  object["n"] = commit.name.n;
  object["host"] = commit.host;
  json& parts = object["parts"] = json::array();
  for (const PartName& part : commit.parts) parts.push_back(json_of(part));
  object["notes"] = commit.notes;
  std::string text = line_of(object);
  const size_t rest = text.size() % kLateBytes;
  const size_t spaces = commit.late ? (kLateBytes - rest) % kLateBytes : (rest == 0 ? 1 : 0);
  text.insert(text.size() - 1, spaces, ' ');
  return text;
}

Result<Vote> parse_vote(const std::string& text, const std::string& key) { return with_name(key, vote_of(text)); }

Result<Commit> parse_commit(const std::string& text, const std::string& key) { return with_name(key, commit_of(text)); }

Result<Void> parse_void(const std::string& text, const std::string& tag, const std::string& key) {
  return with_name(key, void_of(text, tag));
}

uint64_t CommittedStep::number() const { return last_number_in(decision.tag).value_or(0); }

std::string CommittedStep::name() const {
  return ordinal == 1 ? decision.tag : fmt::format("{}~{}", decision.tag, ordinal);
}

bool note_decision(DecisionsByTag& decisions, const io::ObjectInfo& object) {
  if (const auto gone = parse_gone_key(object.key)) {
    decisions[gone->tag].gone.emplace(gone->n, object.changed);
    return true;
  }
  const auto decision = parse_step_key(object.key);
  if (!decision) return false;
  const bool is_commit = object.size > kMostVoidBytes;
  decisions[decision->tag].decided[decision->n] = {is_commit, is_late(object.size), object.changed};
  return true;
}

Result<std::vector<CommittedStep>> steps_of(const DecisionsByTag& found, const std::string& url) {
  std::vector<CommittedStep> steps;
  for (const auto& [tag, of_tag] : found) {
    TRY_ASSIGN(const TagDecisions decisions, decisions_of(url, tag, of_tag));
    steps.insert(steps.end(), decisions.commits.begin(), decisions.commits.end());
  }
  // Servers tell whole seconds: of one second the higher number is the later step.
  const auto when = [](const CommittedStep& step) {
    return std::tuple(step.committed, step.number(), std::string_view(step.decision.tag), step.decision.n);
  };
  std::ranges::sort(steps, {}, when);
  return in_order(steps);
}

Result<std::vector<CommittedStep>> list_steps(io::ObjectStore& store, const io::RequestLimits& limits) {
  TRY_ASSIGN(const DecisionsByTag found, list_decisions_by_tag(store, "", limits));
  return steps_of(found, store.url());
}

Result<TagDecisions> list_decisions(io::ObjectStore& store, const std::string& tag, const io::RequestLimits& limits) {
  TRY(check_tag(tag));
  TRY_ASSIGN(const DecisionsByTag found, list_decisions_by_tag(store, tag + "/", limits));
  const auto of_tag = found.find(tag);
  if (of_tag == found.end()) return TagDecisions{};
  return decisions_of(store.url(), tag, of_tag->second);
}

Result<CommittedStep> find_step(io::ObjectStore& store, const std::string& name, const io::RequestLimits& limits) {
  const Error none(ENOENT, fmt::format("{}: there is no committed step {}", store.url(), io::printable(name)));
  const auto parsed = parse_step_name(name);
  if (!parsed) return none;
  TRY_ASSIGN(const TagDecisions decisions, list_decisions(store, parsed->first, limits));
  if (parsed->second > decisions.commits.size()) return none;
  return decisions.commits[parsed->second - 1];
}

std::optional<CommittedStep> newest(const std::vector<CommittedStep>& steps) {
  const auto found = std::find_if(steps.rbegin(), steps.rend(), [](const CommittedStep& step) { return !step.gone; });
  return found == steps.rend() ? std::nullopt : std::optional(*found);
}

Result<Commit> fetch_commit(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits) {
  const std::string key = step_key(decision), object = store.url() + "/" + key;
  TRY_ASSIGN(const std::string text, io::get_text(store, key, kMostCommitBytes, limits));
  TRY_ASSIGN(Commit commit, parse_commit(text, object));
  if (commit.name != decision) return with_name(object, Error(EBADMSG, "it is the commit of another step or number"));
  return commit;
}

Result<Void> fetch_void(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits) {
  const std::string key = step_key(decision);
  TRY_ASSIGN(const std::string text, io::get_text(store, key, kMostVoidBytes, limits));
  return parse_void(text, decision.tag, store.url() + "/" + key);
}

}  // namespace ckptfs::meta::remote
