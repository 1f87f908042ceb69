#include "fs/remote/fetched_step.h"

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "meta/steps/policy.h"

namespace ckptfs::fs {
namespace {

using nlohmann::json;

constexpr const char* kFetchedXattr = "user.ckptfs.fetched";

}  // namespace

json to_json(const FetchedStep& fetched) {
  return {{"remote", fetched.remote},
          {"tag", fetched.tag},
          {"name", fetched.name},
          {"slot", fetched.slot ? json(*fetched.slot) : json()},
          {"content", io::hex_of(fetched.content)}};
}

Result<FetchedStep> fetched_step_from(const json& record) {
  FetchedStep fetched;
  std::string content;
  try {
    fetched.remote = record.at("remote").get<std::string>();
    fetched.tag = record.at("tag").get<std::string>();
    fetched.name = record.at("name").get<std::string>();
    content = record.at("content").get<std::string>();
    if (!record.at("slot").is_null()) fetched.slot = record.at("slot").get<uint32_t>();
  } catch (const nlohmann::json::exception& error) {
    return Error(EINVAL, std::string("where the step came from: ") + error.what());
  }
  const auto digest = io::digest_from_hex(content);
  if (!digest) return Error(EINVAL, "where the step came from: '" + content + "' is no digest");
  fetched.content = *digest;
  return fetched;
}

Result<std::optional<FetchedStep>> fetched_step(const meta::Store& store, meta::InodeNumber step) {
  TRY_ASSIGN(const auto text, none_if_gone(store.index().xattr(step, kFetchedXattr)));
  if (!text) return std::optional<FetchedStep>();
  TRY_ASSIGN(const json parsed, io::parse_json(*text, {}));
  TRY_ASSIGN(FetchedStep fetched, fetched_step_from(parsed));
  return std::optional(std::move(fetched));
}

Result<> note_fetched(meta::Store& store, meta::InodeNumber step, const FetchedStep& fetched) {
  return meta::set_control_xattr(store, step, kFetchedXattr, to_json(fetched).dump());
}

}  // namespace ckptfs::fs
