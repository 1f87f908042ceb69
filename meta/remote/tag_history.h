// All that has been decided about a tag: its commits and voids, each of which was read. Decisions never change and
// never go, so each is read once. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"

namespace ckptfs::meta::remote {

class TagHistory {
 public:
  // Lists the decisions, and reads those that it does not know. Returns what was listed.
  Result<TagDecisions> update(io::ObjectStore& store, const std::string& tag, const io::RequestLimits& limits);
  // Reads those of this list that it does not know.
  Result<> read(io::ObjectStore& store, const std::string& tag, const TagDecisions& decisions,
                const io::RequestLimits& limits);

  // By the number of the decision.
  const std::map<uint64_t, PartList>& commits() const { return commits_; }
  // The number of the commit that names this part. There is one at most (election.h).
  std::optional<uint64_t> commit_of(const PushName& part) const;
  // Did a void of the collector's name it? Then no commit will.
  bool is_ended(const PushName& part) const { return ended_.contains(part); }
  // Each such part, and the number of the first void that names it.
  const std::map<PushName, uint64_t>& ended() const { return ended_; }
  // The highest PartHeader::number of a slot's parts that a commit names; 0: none does.
  uint64_t highest_number(uint32_t slot) const;

 private:
  uint64_t read_up_to_ = 0;
  std::map<uint64_t, PartList> commits_;
  std::map<PushName, uint64_t> ended_;
};

}  // namespace ckptfs::meta::remote
