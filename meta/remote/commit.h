// What is decided about a step: votes, commits and voids. All are small JSON texts. docs/remote-format.md has their
// fields. A void is at most 160 bytes long, and a commit is longer, so that a list of keys and sizes tells them apart.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/digest.h"
#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

inline constexpr uint64_t kMostVoidBytes = 160;
// A late commit is filled up with spaces to a multiple of this, and no other one has such a length, so that a list
// tells them apart, too.
inline constexpr uint64_t kLateBytes = 4096;

struct PartName {
  PushName push;
  uint64_t number = 0;  // PartHeader::number
  io::Digest digest{};  // of the object
  uint64_t size = 0;    // of the object
  uint64_t files = 0;   // PartHeader::files: so many objects, and
  uint64_t bytes = 0;   // so many bytes in them
  bool operator==(const PartName&) const = default;
};
// One part of each slot, in the order of the slots. Its digest is what is voted on: that of its tags, slots, ids,
// numbers, digests and sizes.
using PartList = std::vector<PartName>;
io::Digest digest_of(const PartList& parts);

struct Vote {
  io::Digest parts{};
  bool operator==(const Vote&) const = default;
};

struct Commit {
  DecisionName name;
  PartList parts;
  std::vector<std::string> notes;  // what the union left out (union.h)
  std::string host;                // that wrote it
  bool late = false;               // CommittedStep::late
};

struct Void {
  io::Digest parts{};             // one of the lists that were voted for; zero: none
  std::optional<PushName> ended;  // the collector made it: this part of the tag is in no commit, and will be in none
};

std::string text_of(const Vote& vote);
std::string text_of(const Commit& commit);
// `ended` is written without its tag, which the key has.
std::string text_of(const Void& nothing);
// EBADMSG, in words; EPROTO for another version. `key`: for messages.
Result<Vote> parse_vote(const std::string& text, const std::string& key);
Result<Commit> parse_commit(const std::string& text, const std::string& key);
// `tag`: of its key.
Result<Void> parse_void(const std::string& text, const std::string& tag, const std::string& key);

// A commit as a list tells it.
struct CommittedStep {
  DecisionName decision;
  uint64_t ordinal = 1;                             // among the commits of its tag
  std::chrono::system_clock::time_point committed;  // by the server's clock
  bool gone = false;                                // there is a tombstone
  // When it was committed, a newer step of its series was already: the link had been down, and the newest went first;
  // or only notes of an old step have changed. So it stands before that one in the order of the steps.
  bool late = false;

  std::string name() const;  // "<tag>", "<tag>~2", ...
  uint64_t number() const;   // in the tag; 0: it has none
};

// What lists say of one tag, by the numbers of its decisions. Times are the server's.
struct DecisionsOfTag {
  using Time = std::chrono::system_clock::time_point;
  struct One {
    bool commit = false;  // else a void
    bool late = false;    // CommittedStep::late
    Time changed;
  };
  std::map<uint64_t, One> decided;
  std::map<uint64_t, Time> gone;  // tombstones
};
using DecisionsByTag = std::map<std::string, DecisionsOfTag, std::less<>>;
// Notes what is listed. Returns whether it is a decision or a tombstone. All tombstones must be listed before the
// decisions: then the decision of each is in the list.
bool note_decision(DecisionsByTag& decisions, const io::ObjectInfo& object);
// As list_steps() does. `url`: of the remote, for messages.
Result<std::vector<CommittedStep>> steps_of(const DecisionsByTag& decisions, const std::string& url);

// All commits, oldest first: by the time of the server, but for late ones. From lists alone. EIO, in words, which can
// pass: a list is not whole, since a decision is missing before another of its tag, or one that has a tombstone.
Result<std::vector<CommittedStep>> list_steps(io::ObjectStore& store, const io::RequestLimits& limits);
// Those of one tag, and the lowest number that is not decided.
struct TagDecisions {
  std::vector<CommittedStep> commits;
  uint64_t undecided = 1;
};
Result<TagDecisions> list_decisions(io::ObjectStore& store, const std::string& tag, const io::RequestLimits& limits);
// "<tag>" or "<tag>~2", also if it is gone. ENOENT, in words: there is no such step.
Result<CommittedStep> find_step(io::ObjectStore& store, const std::string& name, const io::RequestLimits& limits);
// The newest that has no tombstone; none: there is none.
std::optional<CommittedStep> newest(const std::vector<CommittedStep>& steps);

// EBADMSG, naming the object: it is no commit, or that of another decision.
Result<Commit> fetch_commit(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits);
Result<Void> fetch_void(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
