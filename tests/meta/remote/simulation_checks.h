// What must hold in a simulation, after each change of the store:
//   - no object changes
//   - a commit names whole parts, whose files are all there with the right digests. They hold one attempt
//   - each part goes with the decision of its commit, and a decision is a commit or a void
//   - nothing that a standing commit names is deleted
//   - the newest commit has no tombstone, and the rules remove nothing that was pinned before they were read
// What a reader reads is what a mount held. In the end the last attempt of each tag is committed, and nothing lies
// there that nobody needs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/digest.h"
#include "meta/remote/commit.h"
#include "meta/remote/layout.h"
#include "meta/remote/part_format.h"
#include "meta/remote/push.h"
#include "meta/remote/remote_step.h"
#include "tests/meta/remote/simulated_disk.h"

namespace ckptfs::meta::remote::testing {

class Actor;
class World;

struct StoredObject {
  std::string text;
  uint64_t made = 0;
};
using Objects = std::map<std::string, StoredObject>;

class Checks {
 public:
  explicit Checks(World& world) : world_(world) {}

  // What a mount holds of a step from now on. `attempt`: 0: it is half written.
  void note_state(const std::string& mount, const std::string& tag, uint64_t attempt, const Files& files);

  // `actor`: none if the one who asked for it is dead.
  void after_put(const Actor* actor, const std::string& key);
  void after_remove(const std::string& key);
  void after_restore();

  void check_file(const RemoteStep& step, const UnionEntry& file, const std::string& content);
  void check_last_attempt(const Slot& slot, const std::string& tag, const Files& files);
  void check_tidiness();

  std::optional<uint64_t> gone_since(const DecisionName& decision) const;

 private:
  struct State {
    uint64_t attempt = 0;  // 0: half written
    io::Digest content{};
  };
  struct KnownPart {
    PartHeader header;
    std::map<std::string, io::Digest> files;  // by key. Each has one chunk at most
  };
  struct KnownCommit {
    PartList parts;
    std::optional<uint64_t> gone;
    std::vector<std::string> needs;  // keys
  };
  struct KnownRules {
    uint64_t made = 0;
    std::set<std::string> pins;
  };

  void note_part(const PushName& push, const StoredObject& object);
  void note_decision(const DecisionName& decision, const StoredObject& object);
  void note_commit(const DecisionName& decision, const StoredObject& object);
  void note_gone(const DecisionName& decision, const StoredObject& object);
  void note_rules(const StoredObject& object);
  void check_commit(const DecisionName& decision);
  void check_files(const KnownPart& part, const std::string& key) const;
  void check_attempt(const PartList& parts, const std::string& key) const;
  void check_gone(const Actor* actor, const DecisionName& decision) const;
  void check_pins(const Actor& actor, const std::string& step) const;
  bool may_stay(const std::string& key, const StoredObject& object) const;
  std::optional<CommittedStep> newest_step() const;
  void list(const std::string& key, const StoredObject& object);

  World& world_;
  std::map<std::pair<std::string, std::string>, std::vector<State>> states_;  // by mount and tag
  std::map<io::Digest, Files> held_;
  std::map<PushName, KnownPart> parts_;

  // Of the store as it is.
  Decisions decisions_;
  std::map<DecisionName, KnownCommit> commits_;
  std::unordered_map<std::string, unsigned> needed_;
  std::vector<KnownRules> rules_;
};

}  // namespace ckptfs::meta::remote::testing
