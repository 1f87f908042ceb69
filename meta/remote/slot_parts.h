// The parts of a tag, as a list tells them, and with which of slot 0's parts a save of another slot goes: one that is
// of the same save (save_facts.h), and about which nothing is decided. Stateless, but for KnownParts; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/layout.h"
#include "meta/remote/part.h"
#include "meta/remote/save_facts.h"

namespace ckptfs::meta::remote {

struct ListedPart {
  PushName push;
  std::chrono::system_clock::time_point changed;  // by the server's clock
};

struct TagParts {
  std::vector<ListedPart> parts;  // the newest first
  std::vector<PushName> ended;

  bool has(const PushName& push) const;
  bool is_ended(const PushName& push) const;
};
Result<TagParts> list_parts(io::ObjectStore& store, const std::string& tag, const io::RequestLimits& limits);

// What was read of parts and decisions of a tag, which never changes. Begin with a new one for each image. Not
// thread-safe.
class KnownParts {
 public:
  // Of the image, by the store's clock; none: that was not asked for yet. Reset it when the image has more to tell.
  std::optional<SaveFacts> own_save;
  // Null: it is damaged there, or of a later version. A warning says so, once.
  Result<const PartHeader*> header(io::ObjectStore& store, const PushName& part, const io::RequestLimits& limits);
  // As look_up(), but what is decided is not asked for again.
  Result<Decided> decided(io::ObjectStore& store, const DecisionName& decision, const io::RequestLimits& limits);

 private:
  std::map<PushName, std::optional<PartHeader>> headers_;
  std::map<DecisionName, Decided> decided_;
};

struct Lead {
  std::optional<DecisionName> decision;  // none: there is none
  std::string why_not;                   // in words, then
};
// The newest one that such a save goes with.
Result<Lead> find_lead(io::ObjectStore& store, const TagParts& listed, const SaveFacts& own, KnownParts& known,
                       const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
