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
          {"decision", fetched.decision},
          {"slot", fetched.slot ? json(*fetched.slot) : json()},
          {"saved", io::hex_of(fetched.saved)}};
}

Result<FetchedStep> fetched_step_from(const json& record) {
  FetchedStep fetched;
  std::string saved;
  try {
    fetched.remote = record.at("remote").get<std::string>();
    fetched.tag = record.at("tag").get<std::string>();
    fetched.name = record.at("name").get<std::string>();
    fetched.decision = record.value("decision", "");
    saved = record.value("saved", std::string(64, '0'));  // there was none before 0.1.0
    if (!record.at("slot").is_null()) fetched.slot = record.at("slot").get<uint32_t>();
  } catch (const nlohmann::json::exception& error) {
    return Error(EINVAL, std::string("where the step came from: ") + error.what());
  }
  const auto digest = io::digest_from_hex(saved);
  if (!digest) return Error(EINVAL, "where the step came from: '" + saved + "' is no digest");
  fetched.saved = *digest;
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
