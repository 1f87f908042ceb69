// What is decided about a save of a step: a commit, or a void, which says that there will be none. Both are small JSON
// texts. docs/remote-format.md has their fields. A void is at most 160 bytes long, and a commit is longer, so that a
// list of keys and sizes tells them apart.
#pragma once

#include <chrono>
#include <cstdint>
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

struct PartName {
  PushName push;
  io::Digest digest{};  // of the object
  uint64_t size = 0;    // of the object
  uint64_t files = 0;   // PartHeader::files: so many objects, and
  uint64_t bytes = 0;   // so many bytes in them
  bool operator==(const PartName&) const = default;
};
// One part of each slot, in the order of the slots.
using PartList = std::vector<PartName>;

struct Commit {
  DecisionName name;
  PartList parts;
  std::vector<std::string> notes;  // what the union left out (union.h)
  std::string host;                // that wrote it
};

std::string text_of(const Commit& commit);
std::string void_text();
// EBADMSG, in words; EPROTO for another version. `key`: for messages.
Result<Commit> parse_commit(const std::string& text, const std::string& key);

// A commit as a list tells it.
struct CommittedStep {
  DecisionName decision;
  uint64_t ordinal = 1;                             // among the commits of its tag, in their order
  std::chrono::system_clock::time_point committed;  // by the server's clock
  bool gone = false;                                // there is a tombstone

  std::string name() const;  // "<tag>", "<tag>~2", ...
  uint64_t number() const;   // in the tag; 0: it has none
};

// What lists say. Times are the server's.
struct Decisions {
  using Time = std::chrono::system_clock::time_point;
  struct One {
    bool commit = false;  // else a void
    Time changed;
  };
  std::map<DecisionName, One> decided;
  std::map<DecisionName, Time> gone;  // tombstones

  // Notes what is listed. Returns whether it is a decision or a tombstone. All tombstones must be listed before the
  // decisions: then the decision of each is in the list.
  bool note(const io::ObjectInfo& object);
  // All commits, as list_steps() returns them. `url`: of the remote, for messages.
  Result<std::vector<CommittedStep>> steps(const std::string& url) const;
};

// All commits, oldest first: in the order of their saves, and of one save by the time of the server. From lists alone.
// EIO, in words, which can pass: a list is not whole, since it lacks a decision that has a tombstone.
Result<std::vector<CommittedStep>> list_steps(io::ObjectStore& store, const io::RequestLimits& limits);
// "<tag>" or "<tag>~2", also if it is gone. ENOENT, in words: there is no such step.
Result<CommittedStep> find_step(io::ObjectStore& store, const std::string& name, const io::RequestLimits& limits);
// The newest that has no tombstone; none: there is none.
std::optional<CommittedStep> newest(const std::vector<CommittedStep>& steps);
// The newest of the tag, also if it is gone.
std::optional<CommittedStep> newest_of_tag(const std::vector<CommittedStep>& steps, const std::string& tag);

enum class Decided { nothing, commit, voided };
// By a list of this one decision.
Result<Decided> look_up(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits);
// EBADMSG, naming the object: it is no commit, or that of another decision.
Result<Commit> fetch_commit(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
