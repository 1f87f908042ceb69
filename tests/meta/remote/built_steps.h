// Steps in a store, made for tests without a push: packs, parts and commits. One thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/part.h"

namespace ckptfs::meta::remote::testing {

inline constexpr timespec kTime{1'700'000'000, 123'456'789};

Entry folder_entry(const std::string& path);
Entry file_entry(const std::string& path, uint64_t size);
Entry link_entry(const std::string& path, const std::string& target);

// Bytes that differ from chunk to chunk and from seed to seed.
std::string bytes_for(size_t size, unsigned seed);

// What a slot holds. Folders on the way to a file are made.
struct BuiltPart {
  std::map<std::string, std::pair<Entry, std::string>> entries{{"", {folder_entry(""), ""}}};
  std::string attempt;
  uint64_t number = 1;

  BuiltPart& file(const std::string& path, const std::string& content);
  BuiltPart& folder(const std::string& path);
  BuiltPart& link(const std::string& path, const std::string& target);
};

PartHeader header_for(const PushName& push, const BuiltPart& part);
// Without a store: where the chunks lie is made up.
Result<Part> build_part(const PushName& push, const BuiltPart& part, const std::string& folder,
                        io::ObjectStore* store = nullptr, uint32_t chunks_of_pack = 3);
// Puts packs, parts (of slots 0, 1, ...) and the commit.
Result<CommittedStep> put_step(io::ObjectStore& store, const DecisionName& name, const std::vector<BuiltPart>& parts,
                               const std::string& folder);

}  // namespace ckptfs::meta::remote::testing
