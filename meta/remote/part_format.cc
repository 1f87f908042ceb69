#include "meta/remote/part_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/printable.h"
#include "io/text.h"
#include "meta/formats/file_kinds.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "ckptfs part ";
constexpr size_t kLongestMagic = 32;  // with its version and its end
constexpr size_t kLongestName = 255, kLongestPath = 4095;
constexpr mode_t kModeBits = 07777;
constexpr long kNanoseconds = 1'000'000'000;
constexpr io::JsonBounds kHeaderBounds{.bytes = kMostHeaderBytes, .values = 1 << 20, .text = 1 << 16, .depth = 6};
constexpr io::JsonBounds kEntryBounds{.bytes = kLongestEntry, .values = 64, .text = 1 << 15, .depth = 4};

// Numbers of the format are little-endian.
void append_little_endian(std::string& bytes, uint64_t number, size_t width) {
  for (size_t at = 0; at < width; ++at) bytes += static_cast<char>(number >> (8 * at) & 0xff);
}

constexpr std::array<std::string_view, 3> kKinds{"file", "folder", "link"};
static_assert(static_cast<int>(Entry::Kind::link) == 2);

template <class Enum, size_t kCount>
Result<Enum> word_field(const json& object, const char* name, const std::array<std::string_view, kCount>& words) {
  TRY_ASSIGN(const std::string word, text_field(object, name));
  const auto found = std::ranges::find(words, word);
  if (found == words.end()) {
    return Error(EBADMSG, fmt::format("its \"{}\" is \"{}\", which is none", name, io::printable(word)));
  }
  return static_cast<Enum>(found - words.begin());
}

// Returns what is wrong with a path, or nothing.
std::string_view wrong_with_path(std::string_view path) {
  if (!io::is_utf8(path)) return "is not UTF-8";
  if (path.size() > kLongestPath) return "is too long";
  if (path.find('\0') != std::string_view::npos) return "has a zero byte";
  for (size_t begin = 0; !path.empty();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = path.substr(begin, end - begin);
    if (name.empty() || name == "." || name == ".." || name.size() > kLongestName) return "has a name that cannot be";
    if (end == path.size()) break;
    begin = end + 1;
  }
  return {};
}

json json_of(const Entry& entry) {
  json line = {{"path", entry.path}, {"kind", kKinds.at(static_cast<size_t>(entry.kind))},
               {"mode", entry.mode}, {"uid", entry.uid},
               {"gid", entry.gid},   {"mtime", {entry.mtime.tv_sec, entry.mtime.tv_nsec}}};
  if (entry.kind == Entry::Kind::file) line["size"] = entry.size;
  if (entry.kind == Entry::Kind::link) line["target"] = entry.target;
  return line;
}

Result<timespec> time_field(const json& object, const char* name) {
  TRY_ASSIGN(const json* const list, list_field(object, name));
  const auto is_number = [](const json& one) {
    return one.is_number_integer() && (!one.is_number_unsigned() || *one.get_ptr<const uint64_t*>() <=
                                                                        uint64_t{std::numeric_limits<int64_t>::max()});
  };
  if (list->size() != 2 || !std::ranges::all_of(*list, is_number)) {
    return Error(EBADMSG, fmt::format("its \"{}\" is no time", name));
  }
  return timespec{(*list)[0].get<int64_t>(), (*list)[1].get<int64_t>()};
}

Result<formats::CompletenessFacts> parse_facts(const json& header) {
  const auto found = header.find("facts");
  if (found == header.end()) return Error(EBADMSG, "it has no \"facts\"");
  return formats::facts_of(*found);
}

json json_of(const PartHeader& header) {
  json object = json_of(header.save);
  object.update({{"push", header.push.text()},
                 {"slots", header.slots},
                 {"save", header.decision.text()},
                 {"order", header.order.text()},
                 {"host", header.host},
                 {"mount", header.mount},
                 {"content", io::hex_of(header.content)},
                 {"saved", io::hex_of(header.saved)},
                 {"facts", formats::json_of(header.facts)},
                 {"entries", header.entries},
                 {"files", header.files},
                 {"chunks", header.chunks},
                 {"bytes", header.bytes}});
  return object;
}

Result<PartHeader> parse_header(std::string_view line) {
  TRY_ASSIGN(const json object, parse_object(line, kHeaderBounds));
  PartHeader header;
  TRY_ASSIGN(header.push, push_field(object, "push"));
  TRY_ASSIGN(const uint64_t slots, number_field(object, "slots", kMostSlots));
  TRY_ASSIGN(const std::string save, text_field(object, "save"));
  TRY_ASSIGN(header.save, save_facts_of(object));
  TRY_ASSIGN(header.host, text_field(object, "host"));
  TRY_ASSIGN(header.mount, text_field(object, "mount"));
  TRY_ASSIGN(header.content, digest_field(object, "content"));
  TRY_ASSIGN(header.saved, digest_field(object, "saved"));
  TRY_ASSIGN(header.facts, parse_facts(object));
  TRY_ASSIGN(header.entries, number_field(object, "entries", kMostEntries));
  TRY_ASSIGN(header.files, number_field(object, "files", header.entries));
  TRY_ASSIGN(header.chunks, number_field(object, "chunks", kMostPartBytes / sizeof(io::Digest)));
  TRY_ASSIGN(header.bytes, number_field(object, "bytes"));
  TRY_ASSIGN(const std::string own_order, text_field(object, "order"));
  const auto order = parse_order(own_order);
  if (!order) return Error(EBADMSG, "its \"order\" is none: " + io::printable(own_order));
  header.order = *order;
  const auto decision = parse_decision(save);
  const bool is_its_own = decision && (header.push.slot != 0 || decision->lead() == header.push);
  if (!is_its_own || decision->tag != header.push.tag) {
    return Error(EBADMSG, "its \"save\" is none, or that of another step: " + io::printable(save));
  }
  header.decision = *decision;
  if (header.push.slot >= slots) return Error(EBADMSG, "its slot is none of its \"slots\"");
  header.slots = static_cast<uint32_t>(slots);
  return header;
}

}  // namespace

bool is_saved(const Entry& entry) { return entry.kind == Entry::Kind::file && !formats::is_note(entry.path); }

Result<> check_alone(const Entry& entry) {
  const auto wrong = [&](std::string_view what) {
    return Error(EINVAL, fmt::format("{}: its {}", entry.path.empty() ? "the step" : io::printable(entry.path), what));
  };
  if (const auto what = wrong_with_path(entry.path); !what.empty()) return wrong(fmt::format("path {}", what));
  if ((entry.mode & ~kModeBits) != 0) return wrong("mode has bits that are no permissions");
  if (entry.mtime.tv_nsec < 0 || entry.mtime.tv_nsec >= kNanoseconds) return wrong("time is none");
  if (entry.size > uint64_t{std::numeric_limits<int64_t>::max()}) return wrong("size is larger than any file's");
  if (entry.kind != Entry::Kind::file && entry.size != 0) return wrong("size is that of a file, which it is not");
  const std::string_view target = entry.target;
  if ((entry.kind == Entry::Kind::link) == target.empty()) return wrong("target is missing, or it is no link");
  if (!io::is_utf8(target) || target.size() > kLongestPath || target.find('\0') != std::string_view::npos) {
    return wrong("target is not UTF-8, or too long");
  }
  return success();
}

std::string text_of(const Entry& entry) { return line_of(json_of(entry)); }

Result<Entry> parse_entry(std::string_view line) {
  TRY_ASSIGN(const json object, parse_object(line, kEntryBounds));
  constexpr uint64_t kMost32 = std::numeric_limits<uint32_t>::max();
  Entry entry;
  TRY_ASSIGN(entry.path, text_field(object, "path"));
  TRY_ASSIGN(entry.kind, word_field<Entry::Kind>(object, "kind", kKinds));
  TRY_ASSIGN(const uint64_t mode, number_field(object, "mode", kModeBits));
  TRY_ASSIGN(const uint64_t uid, number_field(object, "uid", kMost32));
  TRY_ASSIGN(const uint64_t gid, number_field(object, "gid", kMost32));
  entry.mode = static_cast<mode_t>(mode);
  entry.uid = static_cast<uid_t>(uid);
  entry.gid = static_cast<gid_t>(gid);
  TRY_ASSIGN(entry.mtime, time_field(object, "mtime"));
  if (entry.kind == Entry::Kind::file) {
    TRY_ASSIGN(entry.size, number_field(object, "size"));
  }
  if (entry.kind == Entry::Kind::link) {
    TRY_ASSIGN(entry.target, text_field(object, "target"));
  }
  if (auto checked = check_alone(entry); !checked) return Error(EBADMSG, checked.error().message());
  return entry;
}

std::string text_of(const PartHeader& header) {
  return fmt::format("{}{}\n", kMagic, kVersion) + line_of(json_of(header));
}

Result<std::optional<TextHeader>> parse_begin(std::string_view text) {
  const size_t end = text.find('\n');
  const std::string_view first = text.substr(0, std::min(end, kLongestMagic));
  const std::string_view digits = first.substr(std::min(kMagic.size(), first.size()));
  const auto version = io::parse_number<uint64_t>(digits);
  if (!first.starts_with(kMagic) || !version) {
    return Error(EBADMSG, "it is no part of a step: it does not begin with \"ckptfs part 2\"");
  }
  TRY(check_version(*version));
  if (digits != std::to_string(kVersion)) return Error(EBADMSG, "its version is written in another way");
  if (end == std::string_view::npos) return std::optional<TextHeader>();
  const size_t last = text.find('\n', end + 1);
  if (last == std::string_view::npos) return std::optional<TextHeader>();
  TRY_ASSIGN(PartHeader header, parse_header(text.substr(end + 1, last - end - 1)));
  return std::optional(TextHeader{std::move(header), last + 1});
}

ContentDigest::ContentDigest() { hasher_.add(std::as_bytes(std::span(std::string_view("ckptfs content 1\n")))); }

void ContentDigest::begin(const Entry& entry) {
  std::string bytes;
  append_little_endian(bytes, entry.path.size(), 4);
  bytes += entry.path;
  append_little_endian(bytes, static_cast<uint64_t>(entry.kind), 1);
  append_little_endian(bytes, entry.mode, 4);
  append_little_endian(bytes, entry.uid, 4);
  append_little_endian(bytes, entry.gid, 4);
  append_little_endian(bytes, entry.size, 8);
  append_little_endian(bytes, entry.target.size(), 4);
  bytes += entry.target;
  hasher_.add(std::as_bytes(std::span(bytes)));
}

void ContentDigest::add_chunk(const io::Digest& chunk) { hasher_.add(chunk); }

void ContentDigest::add(const Entry& entry, std::span<const io::Digest> chunks) {
  begin(entry);
  for (const io::Digest& chunk : chunks) add_chunk(chunk);
}

bool SavedDigest::begin(const Entry& entry) {
  if (!is_saved(entry)) return false;
  Entry file;
  file.path = entry.path;
  file.size = entry.size;
  content_.begin(file);
  return true;
}

void SavedDigest::add(const Entry& entry, std::span<const io::Digest> chunks) {
  if (!begin(entry)) return;
  for (const io::Digest& chunk : chunks) add_chunk(chunk);
}

}  // namespace ckptfs::meta::remote
