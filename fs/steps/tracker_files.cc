#include "fs/steps/tracker_files.h"

#include <fcntl.h>

#include <cctype>
#include <optional>
#include <span>

#include "io/fd.h"
#include "meta/names.h"

namespace ckptfs::fs {
namespace {

constexpr size_t kMostLatest = 4096;  // bytes of `latest`

// What the tracker file of that name has in it; none: there is no such file.
Result<std::optional<std::string>> named_by(const meta::Tree& tree, meta::InodeNumber series, const char* tracker) {
  TRY_ASSIGN(const auto file, none_if_gone(tree.child(series, tracker)));
  if (!file) return std::optional<std::string>();
  TRY_ASSIGN(const meta::Attributes attributes, tree.attributes(*file));
  const meta::InodeRecord& record = attributes.record;
  if (record.is_dir()) return std::optional<std::string>();  // just a directory
  std::string tag = record.target;
  if (!S_ISLNK(record.mode)) {
    if (!record.is_regular()) return Error(ENOENT);
    const auto size = static_cast<size_t>(attributes.stat.st_size);
    if (size > kMostLatest) return Error(EFBIG);
    TRY_ASSIGN(const io::Fd blob, tree.open_blob(*file, O_RDONLY));
    tag.resize(size);
    TRY_ASSIGN(const size_t got, io::read_full(blob.get(), std::as_writable_bytes(std::span(tag)), 0));
    tag.resize(got);
  }
  tag.erase(tag.find_last_not_of(" \t\r\n/") + 1);
  tag.erase(0, tag.find_first_not_of(" \t\r\n"));
  tag.erase(0, tag.rfind('/') + 1);
  if (tag.empty()) return Error(ENODATA, "it is empty");
  return std::optional(tag);
}

}  // namespace

bool Latest::names(const std::string& tag) const {
  if (named.contains(tag)) return true;
  const bool ends_with_number = !tag.empty() && std::isdigit(static_cast<unsigned char>(tag.back())) != 0;
  const auto number = ends_with_number ? meta::last_number_in(tag) : meta::step_number(tag);
  return number && named.contains(std::to_string(*number));
}

Latest latest_of(const meta::Tree& tree, meta::InodeNumber series, const std::string& only) {
  Latest latest;
  for (const char* const tracker : meta::kTrackers) {
    if (!only.empty() && only != tracker) continue;
    const auto named = named_by(tree, series, tracker);
    if (!named) latest.unread.emplace(tracker, named.error().message());
    if (named && named.value()) latest.named.insert(*named.value());
  }
  return latest;
}

}  // namespace ckptfs::fs
