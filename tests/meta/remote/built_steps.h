// Steps in a store, made for tests without a push: files, parts and commits. One thread.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/part.h"
#include "meta/remote/step_image.h"

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

// A step whose files, and answers, a test sets.
class BuiltImage : public StepImage {
 public:
  BuiltImage(std::string tag, const BuiltPart& part);
  const std::string& tag() const override { return tag_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::vector<io::Digest>> digests(size_t index) const override;
  Result<> read(size_t index, uint64_t offset, std::span<std::byte> buffer) const override;
  Result<bool> is_current() const override { return current; }
  Result<bool> may_be_voted_for() const override { return current && quiet; }
  const formats::CompletenessFacts& facts() const override { return facts_; }
  const std::string& attempt() const override { return part_.attempt; }

  bool current = true, quiet = true, rotten = false;

 private:
  const std::string& content(size_t index) const { return part_.entries.at(entries_[index].path).second; }

  const std::string tag_;
  const BuiltPart part_;
  std::vector<Entry> entries_;
  const formats::CompletenessFacts facts_;
};

PartHeader header_for(const PushName& push, const BuiltPart& part, uint32_t slots);
// With a store, it gets the files and the part.
Result<Part> build_part(const PushName& push, const BuiltPart& part, const std::string& folder,
                        io::ObjectStore* store = nullptr, uint32_t slots = 1);
// Puts files, parts (of slots 0, 1, ...) and the commit.
Result<CommittedStep> put_step(io::ObjectStore& store, const DecisionName& name, const std::vector<BuiltPart>& parts,
                               const std::string& folder);

}  // namespace ckptfs::meta::remote::testing
