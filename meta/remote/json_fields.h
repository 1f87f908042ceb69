// The JSON texts of the format: their fields, with a check of the kind of each. All errors are EBADMSG, in words,
// unless said otherwise. Stateless; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/digest.h"
#include "io/json.h"
#include "io/result.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

// One line, with its end. What is not UTF-8 is replaced.
std::string line_of(const nlohmann::json& object);
// A text that says what it is: {"ckptfs": kind, "version": kVersion, ...}. Written, it also has "check": the first 16
// digits of the digest of its text without that. So what was damaged on its way is known.
nlohmann::json new_document(const char* kind);
std::string checked_line(nlohmann::json document);

Result<nlohmann::json> parse_object(std::string_view text, const io::JsonBounds& bounds);
// EPROTO, naming both: it is of another version.
Result<nlohmann::json> parse_document(std::string_view text, const char* kind, const io::JsonBounds& bounds);
Result<> check_version(uint64_t version);

Result<std::string> text_field(const nlohmann::json& object, const char* name);
Result<uint64_t> number_field(const nlohmann::json& object, const char* name, uint64_t most = UINT64_MAX);
Result<const nlohmann::json*> list_field(const nlohmann::json& object, const char* name);
Result<std::vector<std::string>> texts_field(const nlohmann::json& object, const char* name);
Result<io::Digest> digest_field(const nlohmann::json& object, const char* name);
Result<PushName> push_field(const nlohmann::json& object, const char* name);

}  // namespace ckptfs::meta::remote
