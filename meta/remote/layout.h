// Where what lies in a remote: the keys of its objects, below the remote's prefix. The format: docs/remote-format.md.
//
//   ckptfs.json                       what remote this is (remote_facts.h)
//   packs/<tag>/<slot>.<id>/<k>       chunks, one after the other, at most 64 MiB
//   parts/<tag>/<slot>.<id>           what a slot holds of a step (part.h)
//   votes/<tag>/<n>/<slot>            a slot's word for a list of parts (commit.h)
//   steps/<tag>/<n>                   a commit, or a void (commit.h)
//   gone/<tag>/<n>                    a tombstone (tombstone.h)
//   rules/<n>                         which steps stay; the highest n counts (remote_rules.h)
//   looks/<n>                         what the collector saw (look.h)
//   probe/<id>                        what probe_store() tries, for a moment (remote_facts.h)
//
// No object is ever written twice with another content. Stateless; any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/result.h"

namespace ckptfs::meta::remote {

inline constexpr int kVersion = 1;
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;
inline constexpr uint64_t kPackBytes = uint64_t{64} << 20;

inline constexpr const char* kFactsKey = "ckptfs.json";
inline constexpr const char* kPacks = "packs/";
inline constexpr const char* kParts = "parts/";
inline constexpr const char* kVotes = "votes/";
inline constexpr const char* kSteps = "steps/";
inline constexpr const char* kGone = "gone/";
inline constexpr const char* kRules = "rules/";
inline constexpr const char* kLooks = "looks/";
inline constexpr const char* kProbe = "probe/";

// One try of one slot to push a step. `id` is random and never used again.
struct PushName {
  std::string tag;
  uint32_t slot = 0;
  std::string id;  // 16 hexadecimal digits

  std::string text() const;                           // "<tag>/<slot>.<id>"
  auto operator<=>(const PushName&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
};
// 16 random hexadecimal digits.
std::string new_id();
PushName new_push(const std::string& tag, uint32_t slot);
std::optional<PushName> parse_push(std::string_view text);

// A decision about a tag: n counts from 1.
struct DecisionName {
  std::string tag;
  uint64_t n = 0;
  auto operator<=>(const DecisionName&) const = default;
};

// A pack, or a vote, by name.
struct PackName {
  PushName push;
  uint32_t pack = 0;
};
struct VoteName {
  DecisionName decision;
  uint32_t slot = 0;
};

std::string pack_key(const PushName& push, uint32_t pack);
std::string part_key(const PushName& push);
std::string vote_key(const DecisionName& decision, uint32_t slot);
std::string step_key(const DecisionName& decision);
std::string gone_key(const DecisionName& decision);
std::string rules_key(uint64_t n);
std::string look_key(uint64_t n);

// What a key below kPacks, kParts, kVotes, kSteps, kGone, kRules or kLooks names; none: it is no such key, and somebody
// else's object.
std::optional<PackName> parse_pack_key(std::string_view key);
std::optional<PushName> parse_part_key(std::string_view key);
std::optional<VoteName> parse_vote_key(std::string_view key);
std::optional<DecisionName> parse_step_key(std::string_view key);
std::optional<DecisionName> parse_gone_key(std::string_view key);
std::optional<uint64_t> parse_rules_key(std::string_view key);
std::optional<uint64_t> parse_look_key(std::string_view key);

// Packs by number: first and last of each range, ascending.
using PackRanges = std::vector<std::pair<uint32_t, uint32_t>>;

// Adds a pack that comes after all others.
void append(PackRanges& ranges, uint32_t pack);
// Puts ranges into order that overlap.
void unite(PackRanges& ranges);
bool contains(const PackRanges& ranges, uint32_t pack);

// EINVAL, in words, unless a step of this name can be pushed: it is part of a key, so it is UTF-8 without control
// characters, which the list of an S3 store could not tell; and it has no '~', which stands before the number of a
// later commit ("global_step5~2").
Result<> check_tag(std::string_view tag);

}  // namespace ckptfs::meta::remote
