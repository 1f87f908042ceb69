// What the collector saw when it looked at a remote, and what it took for garbage: looks/<n>, made and never changed.
//
// Garbage is deleted when two looks, a day apart, took it for that. So a list that was short or late once does no harm,
// and who looks need not be who has looked before. A look also says what there was, so that the next one knows a list
// that lacks something. docs/remote-format.md has the fields. Stateless; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/inventory.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

struct Look {
  struct Tag {
    uint64_t decided = 0;     // decisions 1 to this one
    std::set<uint64_t> gone;  // that had tombstones
    bool operator==(const Tag&) const = default;
  };

  uint64_t n = 0;  // 0: there is none
  std::string host;
  // How often somebody has said that the store was restored from a copy: a random word for each time, with a space
  // between them. What was seen with fewer words does not count. Later looks repeat them; empty: nobody has.
  std::string restored;
  std::map<std::string, Tag> tags;
  std::set<PushName> undecided;            // whose parts were listed, and in no commit
  std::map<PushName, PackRanges> garbage;  // pushes that are no longer needed, and their packs
  std::set<PushName> needless_parts;       // of those, likewise
};

std::string text_of(const Look& look);
// EBADMSG, in words; EPROTO for another version. `key`: for messages.
Result<Look> parse_look(const std::string& text, uint64_t n, const std::string& key);
Result<Look> fetch_look(io::ObjectStore& store, uint64_t n, const io::RequestLimits& limits);

// What a machine has seen of a remote, in a file of its own. None: there is no such file. What is damaged is an error,
// in words, with what to do.
Result<std::optional<Look>> read_memory(const std::string& file);
// Durable on return. Several processes may write it at the same moment: one after the other.
Result<> write_memory(const std::string& file, const Look& look);

// EIO, naming it: something that was decided at that look is not listed.
Result<> check_decisions(const Look& look, const Inventory& inventory, const std::string& url);
// The same for what a machine remembers. `last`: the newest look that is listed. EIO, too: the store was restored from
// a copy that is older than what `memory` was told of.
Result<> check_memory(const Look& memory, const Look& last, const Inventory& inventory, const std::string& url);

}  // namespace ckptfs::meta::remote
