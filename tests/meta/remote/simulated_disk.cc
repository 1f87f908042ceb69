#include "tests/meta/remote/simulated_disk.h"

#include <span>

namespace ckptfs::meta::remote::testing {

std::vector<Entry> entries_of(const Files& files) {
  std::vector<Entry> entries(1);
  entries[0].kind = Entry::Kind::folder;
  entries[0].mode = 0755;
  for (const auto& [path, content] : files) {
    Entry& entry = entries.emplace_back();
    entry.path = path;
    entry.mode = 0644;
    entry.size = content.size();
  }
  return entries;
}

io::Digest digest_of_text(const std::string& text) { return io::digest_of(std::as_bytes(std::span(text))); }

io::Digest content_of_files(const Files& files) {
  ContentDigest content;
  for (const Entry& entry : entries_of(files)) {
    std::vector<io::Digest> digests;
    if (entry.size > 0) digests.push_back(digest_of_text(files.at(entry.path)));
    content.add(entry, digests);
  }
  return content.finish();
}

}  // namespace ckptfs::meta::remote::testing
