// Where what lies in a remote: the keys of its objects, below the remote's prefix. The format: docs/remote-format.md.
//
//   <tag>.<id>/PATH                          a file of a step, as it is: what a push has sent
//   <tag>.<id>/slot-<i>/PATH                 likewise, in a remote of several slots
//   .ckptfs/series/series.json               what remote this is (remote_facts.h)
//   .ckptfs/slots/<i>/<term>                 whose slot i is; the highest term counts (slot_owner.h)
//   .ckptfs/pushes/<tag>/<slot>.<id>         a push that sends, or sent, files (push.h)
//   .ckptfs/parts/<tag>/<slot>.<id>          what a slot holds of a step (part.h)
//   .ckptfs/steps/<order>.<tag>.<id>         what was decided about a save: a commit, or a void (commit.h)
//   .ckptfs/gone/<order>.<tag>.<id>          a tombstone (tombstone.h)
//   .ckptfs/rules/<n>                        which steps stay; the highest n counts (remote_rules.h)
//   .ckptfs/collected/last                   who ran the collector last (collector.h)
//   .ckptfs/probe/<id>                       what probe_store() tries, for a moment (remote_facts.h)
//
// No object is ever written twice with another content, but for those below pushes/ and collected/, whose time counts,
// and parts that are dead (collector.h).
// Stateless; any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/result.h"

namespace ckptfs::meta::remote {

inline constexpr int kVersion = 2;
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

inline constexpr uint32_t kMostSlots = 1 << 16;

inline constexpr const char* kSeries = ".ckptfs/series/";
inline constexpr const char* kFactsKey = ".ckptfs/series/series.json";
inline constexpr const char* kSlots = ".ckptfs/slots/";
inline constexpr const char* kPushes = ".ckptfs/pushes/";
inline constexpr const char* kParts = ".ckptfs/parts/";
inline constexpr const char* kSteps = ".ckptfs/steps/";
inline constexpr const char* kGone = ".ckptfs/gone/";
inline constexpr const char* kRules = ".ckptfs/rules/";
inline constexpr const char* kCollected = ".ckptfs/collected/";
inline constexpr const char* kCollectedKey = ".ckptfs/collected/last";
inline constexpr const char* kProbe = ".ckptfs/probe/";

// One try of one slot to push a step. `id` is random and never used again.
struct PushName {
  std::string tag;
  uint32_t slot = 0;
  std::string id;  // 16 hexadecimal digits

  std::string text() const;                           // "<tag>/<slot>.<id>"
  std::string folder() const;                         // "<tag>.<id>/": no other push has it
  auto operator<=>(const PushName&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated
};
// 16 random hexadecimal digits.
std::string new_id();
std::optional<PushName> parse_push(std::string_view text);

// Where a save stands among all saves of a remote. Slot 0 gives it: the term in which it owned the slot then
// (slot_owner.h), and the time of the save by the clock of its store, which only grows.
struct Order {
  uint32_t term = 0;
  uint64_t time = 0;                               // nanoseconds
  auto operator<=>(const Order&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated

  std::string text() const;  // 24 hexadecimal digits. A later save has the lower text, so that lists begin with it
};
std::optional<Order> parse_order(std::string_view text);

// What is decided about one save of a step. It is named by the push of slot 0: so there is one decision for each.
struct DecisionName {
  Order order;
  std::string tag;
  std::string id;                                         // PushName::id of slot 0's push
  auto operator<=>(const DecisionName&) const = default;  // NOLINT(modernize-use-nullptr): in what is generated

  std::string text() const;  // "<order>.<tag>.<id>"
  PushName lead() const { return {tag, 0, id}; }
};
std::optional<DecisionName> parse_decision(std::string_view text);

// Of a file, in a remote of so many slots. `path`: Entry::path.
std::string file_key(const PushName& push, uint32_t slots, std::string_view path);
// Of a step's files those that say that it is there: they come last, and go first, so that who looks at the folder with
// other tools seldom sees half a model. `key`: of a file, or its path.
bool comes_last(std::string_view key);
std::string push_key(const PushName& push);
std::string part_key(const PushName& push);
std::string step_key(const DecisionName& decision);
std::string gone_key(const DecisionName& decision);
std::string owner_key(uint32_t slot, uint32_t term);
std::string rules_key(uint64_t n);

// What a key of the kinds above names; none: it is no such key, and somebody else's object.
// "<tag>.<id>/", of a key below the folder of a push.
std::optional<std::string_view> parse_folder(std::string_view key);
std::optional<PushName> parse_push_key(std::string_view key);
std::optional<PushName> parse_part_key(std::string_view key);
std::optional<DecisionName> parse_step_key(std::string_view key);
std::optional<DecisionName> parse_gone_key(std::string_view key);
std::optional<uint64_t> parse_rules_key(std::string_view key);
struct OwnerName {
  uint32_t slot = 0, term = 0;
};
std::optional<OwnerName> parse_owner_key(std::string_view key);

// EINVAL, in words, unless a step of this name can be pushed: it is part of a key, so it is UTF-8 without control
// characters, which the list of an S3 store could not tell; and it has no '~', which stands before the number of a
// later commit ("global_step5~2").
Result<> check_tag(std::string_view tag);

}  // namespace ckptfs::meta::remote
