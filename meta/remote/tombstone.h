// A tombstone: a commit is removed. It says who removed it and why, and what its parts held, so that a mount that still
// has the step knows it again and does not push it anew. Whoever only reads needs its key alone.
//
// A reader that has the step open can read on for a day. Stateless; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/digest.h"
#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"

namespace ckptfs::meta::remote {

struct Tombstone {
  DecisionName name;
  std::string host;
  std::string why;                // "keep_last=20 ...", "by hand"
  std::vector<io::Digest> saved;  // PartHeader::saved of each slot's part; empty: the parts could not be read
};

std::string text_of(const Tombstone& tombstone);
// EBADMSG, in words; EPROTO for another version. `key`: for messages.
Result<Tombstone> parse_tombstone(const std::string& text, const std::string& key);

// Makes the tombstone of this commit. It is no error if there is one. The caller has made certain that the commit is
// not the newest one.
Result<> remove_step(io::ObjectStore& store, const CommittedStep& step, const std::string& host, const std::string& why,
                     const io::RequestLimits& limits);

// Was the newest commit of the tag removed, and did this slot's part of it hold these files? Of slot 0 it must have
// been of this save, too: two may hold the same bytes. Its tombstone then.
Result<std::optional<Tombstone>> find_removed(io::ObjectStore& store, const std::string& tag, uint32_t slot,
                                              const io::Digest& saved, const Order& order,
                                              const io::RequestLimits& limits);

}  // namespace ckptfs::meta::remote
