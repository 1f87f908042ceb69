// Makes a committed step in a remote without a mount, for tests of those who read: each FOLDER is what one slot holds.
//
//   remote_step URL TAG FOLDER... [--endpoint E]
//
// Prints the name of the step. An error goes to stderr, and the exit status is 1. Folders and files only.
#include <fcntl.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/digest.h"
#include "io/fd.h"
#include "io/objects/open_object_store.h"
#include "meta/remote/commit.h"
#include "meta/remote/part.h"
#include "meta/remote/remote_facts.h"

namespace ckptfs::meta::remote {
namespace {

namespace files = std::filesystem;

struct Words {
  std::string url, tag;
  std::vector<std::string> folders;
  io::S3Settings settings;
};

constexpr uint64_t kPieceBytes = uint64_t{64} << 20;

io::RequestLimits limits() { return io::RequestLimits::within(std::chrono::seconds(60)); }

Result<Entry> entry_of(const files::path& folder, const std::string& path) {
  TRY_ASSIGN(const struct stat facts, io::stat_at(AT_FDCWD, (folder / path).string()));
  Entry entry;
  entry.path = path;
  entry.kind = S_ISDIR(facts.st_mode) ? Entry::Kind::folder : Entry::Kind::file;
  entry.mode = facts.st_mode & 07777;
  entry.uid = facts.st_uid;
  entry.gid = facts.st_gid;
  entry.mtime = facts.st_mtim;
  if (entry.kind == Entry::Kind::file) entry.size = static_cast<uint64_t>(facts.st_size);
  return entry;
}

// The bytes [offset, offset + size) of a file.
io::ObjectContent piece_of(const io::Fd& file, uint64_t offset, uint64_t size) {
  const auto read = [&file, offset](uint64_t at, std::span<std::byte> buffer) -> Result<> {
    TRY_ASSIGN(const size_t got, io::read_full(file.get(), buffer, static_cast<off_t>(offset + at)));
    return got == buffer.size() ? success() : Result<>(Error(EIO, "the file became shorter"));
  };
  return {size, read};
}

Result<std::vector<io::Digest>> digests_of(const io::Fd& file, uint64_t size) {
  std::vector<io::Digest> digests;
  std::vector<std::byte> bytes(kChunkBytes);
  for (uint64_t at = 0; at < size; at += kChunkBytes) {
    TRY_ASSIGN(const size_t got, io::read_full(file.get(), bytes, static_cast<off_t>(at)));
    digests.push_back(io::digest_of(std::span(bytes).first(got)));
  }
  return digests;
}

// As a push does: a large file in pieces.
Result<> put_file(io::ObjectStore& store, const std::string& key, const io::Fd& file, uint64_t size) {
  if (size <= kPieceBytes) return store.put(key, piece_of(file, 0, size), io::PutMode::make, limits());
  TRY_ASSIGN(const io::Upload upload, store.begin_upload(key, limits()));
  std::vector<std::string> tags;
  for (uint64_t at = 0; at < size; at += kPieceBytes) {
    const auto number = static_cast<uint32_t>(tags.size() + 1);
    const io::ObjectContent piece = piece_of(file, at, std::min(kPieceBytes, size - at));
    TRY_ASSIGN(std::string tag, store.put_piece(upload, number, at, piece, limits()));
    tags.push_back(std::move(tag));
  }
  return store.complete_upload(upload, size, tags, limits());
}

Result<PartName> push_folder(io::ObjectStore& store, const Words& words, uint32_t slot, const DecisionName& decision) {
  const files::path folder = words.folders[slot];
  std::vector<std::string> paths{""};
  for (const auto& one : files::recursive_directory_iterator(folder)) {
    paths.push_back(one.path().lexically_relative(folder).string());
  }
  std::ranges::sort(paths);
  PartHeader header;
  header.push = slot == 0 ? decision.lead() : PushName{words.tag, slot, new_id()};
  header.slots = static_cast<uint32_t>(words.folders.size());
  header.decision = decision;
  header.host = "host" + std::to_string(slot);
  header.mount = "mount" + std::to_string(slot);
  TRY_ASSIGN(PartWriter writer, PartWriter::make(files::temp_directory_path()));
  for (const std::string& path : paths) {
    TRY_ASSIGN(const Entry entry, entry_of(folder, path));
    if (entry.kind == Entry::Kind::folder) {
      TRY(writer.add(entry, {}));
      continue;
    }
    TRY_ASSIGN(const io::Fd file, io::open_at(AT_FDCWD, (folder / path).string(), O_RDONLY));
    TRY_ASSIGN(const std::vector<io::Digest> digests, digests_of(file, entry.size));
    TRY(put_file(store, header.key_of(entry), file, entry.size));
    TRY(writer.add(entry, digests));
  }
  TRY_ASSIGN(const Part part, writer.finish(std::move(header)));
  TRY(store.put(part_key(part.header().push), part.content(), io::PutMode::make, limits()));
  return part.name();
}

Result<> make_step(const Words& words) {
  TRY_ASSIGN(const auto store, io::open_object_store(words.url, words.settings));
  TRY(probe_store(*store, limits()));  // as `ckptfs remote add`: SeaweedFS makes the bucket with the first object
  TRY(found_remote(*store, static_cast<uint32_t>(words.folders.size()), "host0", limits()));
  TRY_ASSIGN(const auto before, list_steps(*store, limits()));
  Commit commit;
  commit.name = {{1, before.size() + 1}, words.tag, new_id()};
  commit.host = "host0";
  for (uint32_t slot = 0; slot < words.folders.size(); ++slot) {
    TRY_ASSIGN(PartName part, push_folder(*store, words, slot, commit.name));
    commit.parts.push_back(std::move(part));
  }
  TRY(store->put(step_key(commit.name), io::content_of(text_of(commit)), io::PutMode::make, limits()));
  const auto last = newest_of_tag(before, words.tag);
  std::printf("%s\n", CommittedStep{commit.name, last ? last->ordinal + 1 : 1, {}}.name().c_str());
  return success();
}

}  // namespace
}  // namespace ckptfs::meta::remote

int main(int argc, char** argv) {
  ckptfs::meta::remote::Words words;
  CLI::App app("Makes a committed step in a remote");
  app.add_option("url", words.url)->required();
  app.add_option("tag", words.tag)->required();
  app.add_option("folders", words.folders)->required();
  app.add_option("--endpoint", words.settings.endpoint);
  CLI11_PARSE(app, argc, argv);
  const auto done = ckptfs::meta::remote::make_step(words);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message().c_str());
  return done ? 0 : 1;
}
