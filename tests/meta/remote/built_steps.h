// Steps in a store, made for tests without a push: files, parts and commits. One thread.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"
#include "meta/remote/commit.h"
#include "meta/remote/layout.h"
#include "meta/remote/part.h"
#include "meta/remote/save_facts.h"
#include "meta/remote/step_image.h"

namespace ckptfs::meta::remote::testing {

inline constexpr timespec kTime{1'700'000'000, 123'456'789};

Entry folder_entry(const std::string& path);
Entry file_entry(const std::string& path, uint64_t size);
Entry link_entry(const std::string& path, const std::string& target);

// Bytes that differ from chunk to chunk and from seed to seed.
std::string bytes_for(size_t size, unsigned seed);

// A name for a save, with a new id. `time`: its place among the saves of the remote (Order).
DecisionName new_save(const std::string& tag, uint64_t time = 1);
// A push with a new id.
inline PushName new_push(const std::string& tag, uint32_t slot) { return {tag, slot, new_id()}; }

// What a slot holds. Folders on the way to a file are made.
struct BuiltPart {
  std::map<std::string, std::pair<Entry, std::string>> entries{{"", {folder_entry(""), ""}}};
  SaveFacts save;

  BuiltPart& file(const std::string& path, const std::string& content);
  BuiltPart& folder(const std::string& path);
  BuiltPart& link(const std::string& path, const std::string& target);
};

// A step whose files, and answers, a test sets.
class BuiltImage : public StepImage {
 public:
  // `order`: of its save. Without it, it goes before all others.
  BuiltImage(std::string tag, const BuiltPart& part, Order order = {1, 0});
  const std::string& tag() const override { return tag_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::vector<io::Digest>> digests(size_t index) const override;
  Result<> read(size_t index, uint64_t offset, std::span<std::byte> buffer) const override;
  Result<bool> is_current() const override { return current; }
  const formats::CompletenessFacts& facts() const override { return facts_; }
  Order order() const override { return order_; }
  const SaveFacts& save() const override { return part_.save; }

  bool current = true, rotten = false;

 private:
  const std::string& content(size_t index) const { return part_.entries.at(entries_[index].path).second; }

  const std::string tag_;
  const BuiltPart part_;
  const Order order_;
  std::vector<Entry> entries_;
  const formats::CompletenessFacts facts_;
};

// `decision`: that the part goes with. None: one that has the id of this push, as that of slot 0 must have.
PartHeader header_for(const PushName& push, const BuiltPart& part, uint32_t slots,
                      const std::optional<DecisionName>& decision = {});
// With a store, it gets the files and the part.
Result<Part> build_part(const PushName& push, const BuiltPart& part, const std::string& folder,
                        io::ObjectStore* store = nullptr, uint32_t slots = 1,
                        const std::optional<DecisionName>& decision = {});
// Puts files, parts (of slots 0, 1, ...) and the commit. It must be the first one of its tag.
Result<CommittedStep> put_step(io::ObjectStore& store, const DecisionName& name, const std::vector<BuiltPart>& parts,
                               const std::string& folder);

}  // namespace ckptfs::meta::remote::testing
