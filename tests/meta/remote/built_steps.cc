#include "tests/meta/remote/built_steps.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace ckptfs::meta::remote::testing {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::vector<io::Digest> digests_of_text(const std::string& text) {
  std::vector<io::Digest> digests;
  for (size_t at = 0; at < text.size(); at += kChunkBytes) {
    digests.push_back(io::digest_of(bytes_of(text).subspan(at, std::min<size_t>(kChunkBytes, text.size() - at))));
  }
  return digests;
}

}  // namespace

Entry folder_entry(const std::string& path) {
  return {path, Entry::Kind::folder, 0755, ::getuid(), ::getgid(), 0, kTime, "", 0};
}
Entry file_entry(const std::string& path, uint64_t size) {
  return {path, Entry::Kind::file, 0640, ::getuid(), ::getgid(), size, kTime, "", 0};
}
Entry link_entry(const std::string& path, const std::string& target) {
  return {path, Entry::Kind::link, 0777, ::getuid(), ::getgid(), 0, kTime, target, 0};
}

std::string bytes_for(size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  uint32_t state = seed * 2'654'435'761U + 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1'664'525U + 1'013'904'223U) >> 24);
  return bytes;
}

DecisionName new_save(const std::string& tag, uint64_t time) { return {{1, time}, tag, new_id()}; }

BuiltPart& BuiltPart::folder(const std::string& path) {
  if (entries.contains(path)) return *this;
  const size_t slash = path.rfind('/');
  if (slash != std::string::npos) folder(path.substr(0, slash));
  entries[path] = {folder_entry(path), ""};
  return *this;
}
BuiltPart& BuiltPart::file(const std::string& path, const std::string& content) {
  const size_t slash = path.rfind('/');
  if (slash != std::string::npos) folder(path.substr(0, slash));
  entries[path] = {file_entry(path, content.size()), content};
  return *this;
}
BuiltPart& BuiltPart::link(const std::string& path, const std::string& target) {
  entries[path] = {link_entry(path, target), ""};
  return *this;
}

BuiltImage::BuiltImage(std::string tag, const BuiltPart& part, Order order)
    : tag_(std::move(tag)), part_(part), order_(order) {
  for (const auto& [path, one] : part_.entries) entries_.push_back(one.first);
}

Result<std::vector<io::Digest>> BuiltImage::digests(size_t index) const { return digests_of_text(content(index)); }

Result<> BuiltImage::read(size_t index, uint64_t offset, std::span<std::byte> buffer) const {
  std::memcpy(buffer.data(), content(index).data() + offset, buffer.size());
  if (rotten && !buffer.empty()) buffer[0] ^= std::byte{1};
  return success();
}

PartHeader header_for(const PushName& push, const BuiltPart& part, uint32_t slots,
                      const std::optional<DecisionName>& decision) {
  PartHeader header;
  header.push = push;
  header.slots = slots;
  header.decision = decision.value_or(DecisionName{{1, 1}, push.tag, push.id});
  header.save = part.save;
  header.host = "node" + std::to_string(push.slot);
  header.mount = "0123:/steps";
  header.facts.own = {formats::Completeness::incomplete, "rank 1 is missing"};
  header.facts.states.missing = {{"a/b.pt", 1, 2}, {"c"}};
  return header;
}

Result<Part> build_part(const PushName& push, const BuiltPart& part, const std::string& folder, io::ObjectStore* store,
                        uint32_t slots, const std::optional<DecisionName>& decision) {
  TRY_ASSIGN(PartWriter writer, PartWriter::make(folder));
  for (const auto& [path, entry] : part.entries) {
    TRY(writer.add(entry.first, digests_of_text(entry.second)));
    if (store == nullptr || entry.first.kind != Entry::Kind::file) continue;
    const std::string key = file_key(push, slots, path);
    TRY(store->put(key, io::content_of(std::string_view(entry.second)), io::PutMode::make, {}));
  }
  TRY_ASSIGN(Part built, writer.finish(header_for(push, part, slots, decision)));
  if (store != nullptr) TRY(store->put(part_key(push), built.content(), io::PutMode::make, {}));
  return built;
}

Result<CommittedStep> put_step(io::ObjectStore& store, const DecisionName& name, const std::vector<BuiltPart>& parts,
                               const std::string& folder) {
  Commit commit{name, {}, {}, "node0"};
  const auto slots = static_cast<uint32_t>(parts.size());
  for (uint32_t slot = 0; slot < slots; ++slot) {
    const PushName push = slot == 0 ? name.lead() : new_push(name.tag, slot);
    TRY_ASSIGN(const Part part, build_part(push, parts[slot], folder, &store, slots, name));
    commit.parts.push_back(part.name());
  }
  TRY(store.put(step_key(name), io::content_of(std::string_view(text_of(commit))), io::PutMode::make, {}));
  return CommittedStep{name, 1, {}};
}

}  // namespace ckptfs::meta::remote::testing
