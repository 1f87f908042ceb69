#include "meta/remote/json_fields.h"

#include <fmt/format.h>

#include <cerrno>
#include <span>
#include <utility>

#include "io/printable.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

Error no_field(const char* name, const char* kind) {
  return Error(EBADMSG, fmt::format("it has no {} \"{}\"", kind, name));
}

const json* find_field(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

constexpr const char* kCheck = "check";
constexpr size_t kCheckDigits = 16;

std::string check_of(const json& document) {
  const std::string line = line_of(document);
  return io::hex_of(io::digest_of(std::as_bytes(std::span(line)))).substr(0, kCheckDigits);
}

}  // namespace

std::string line_of(const json& object) { return object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"; }

std::string checked_line(json document) {
  document[kCheck] = check_of(document);
  return line_of(document);
}

json new_document(const char* kind) { return json{{"ckptfs", kind}, {"version", kVersion}}; }

Result<json> parse_object(std::string_view text, const io::JsonBounds& bounds) {
  auto object = io::parse_json(text, bounds);
  if (!object) return Error(EBADMSG, object.error().message());
  if (!object.value().is_object()) return Error(EBADMSG, "it is no JSON object");
  return object;
}

Result<json> parse_document(std::string_view text, const char* kind, const io::JsonBounds& bounds) {
  TRY_ASSIGN(json object, parse_object(text, bounds));
  TRY_ASSIGN(const std::string found, text_field(object, "ckptfs"));
  if (found != kind)
    return Error(EBADMSG, fmt::format("it is \"{}\", and should be \"{}\"", io::printable(found), kind));
  TRY_ASSIGN(const uint64_t version, number_field(object, "version"));
  TRY(check_version(version));
  TRY_ASSIGN(const std::string check, text_field(object, kCheck));
  object.erase(kCheck);
  if (check != check_of(object)) return Error(EBADMSG, "it was damaged, there or on its way");
  return object;
}

Result<> check_version(uint64_t version) {
  if (version == kVersion) return success();
  return Error(EPROTO,
               fmt::format("it is of version {} of the format, and this ckptfs knows version {}: {}", version, kVersion,
                           version > kVersion ? "a newer ckptfs is needed" : "there is no such version"));
}

Result<std::string> text_field(const json& object, const char* name) {
  const json* const field = find_field(object, name);
  if (field == nullptr || !field->is_string()) return no_field(name, "text");
  return *field->get_ptr<const std::string*>();
}

Result<uint64_t> number_field(const json& object, const char* name, uint64_t most) {
  const json* const field = find_field(object, name);
  if (field == nullptr || !field->is_number_unsigned()) return no_field(name, "number");
  const auto number = *field->get_ptr<const uint64_t*>();
  if (number > most) return Error(EBADMSG, fmt::format("its \"{}\" is {}: more than there can be", name, number));
  return number;
}

Result<const json*> list_field(const json& object, const char* name) {
  const json* const field = find_field(object, name);
  if (field == nullptr || !field->is_array()) return no_field(name, "list");
  return field;
}

Result<std::vector<std::string>> texts_field(const json& object, const char* name) {
  TRY_ASSIGN(const json* const list, list_field(object, name));
  std::vector<std::string> texts;
  texts.reserve(list->size());
  for (const json& one : *list) {
    if (!one.is_string()) return Error(EBADMSG, fmt::format("its list \"{}\" has something else than texts", name));
    texts.push_back(*one.get_ptr<const std::string*>());
  }
  return texts;
}

Result<io::Digest> digest_field(const json& object, const char* name) {
  TRY_ASSIGN(const std::string text, text_field(object, name));
  const auto digest = io::digest_from_hex(text);
  if (!digest) return no_field(name, "digest");
  return *digest;
}

Result<PushName> push_field(const json& object, const char* name) {
  TRY_ASSIGN(const std::string text, text_field(object, name));
  auto push = parse_push(text);
  if (!push) return Error(EBADMSG, fmt::format("its \"{}\" is {}, which names no push", name, io::printable(text)));
  return std::move(*push);
}

}  // namespace ckptfs::meta::remote
