#include "meta/remote/save_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/fault.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"

namespace ckptfs::meta::remote {
namespace {

using nlohmann::json;

// Nodes of one save begin and end it by so much apart, and by as long as the faster one takes.
constexpr std::chrono::minutes kApart{1};
constexpr int64_t kMostTime = int64_t{1} << 53;
constexpr const char* kAgree =
    "; `import ckptfs.patch` on all nodes lets them agree from the next save on. If you know that these files are of "
    "one "
    "save: setfattr -n user.ckptfs.attempt -v WORD STEP, with one WORD on all nodes";

std::string seconds_text(Milliseconds time) {
  return fmt::format("{:.1f} s", static_cast<double>(time.count()) / 1000);
}

// The processes of `younger` may have begun when the files of `older` were being written.
std::string why_younger(const SaveLife& younger, const SaveLife& older, const char* whose, const char* others) {
  const Milliseconds error = younger.error + older.error;
  if (younger.began + error <= older.first) return {};
  const Milliseconds late = younger.began - older.first;
  if (late > error) {
    return fmt::format("a process that wrote {} began {} after {} first file was written: it is of another run", whose,
                       seconds_text(late), others);
  }
  return fmt::format("a process that wrote {} began when {} first file was written, within {}", whose, others,
                     seconds_text(error));
}

std::string why_not_one_life(const SaveLife& lead, const SaveLife& own) {
  if (io::fault_value("life_unchecked")) return {};
  if (auto why = why_younger(own, lead, "this slot's files", "slot 0's"); !why.empty()) return why;
  if (auto why = why_younger(lead, own, "slot 0's files", "this slot's"); !why.empty()) return why;
  if (lead.count != own.count) {
    return fmt::format("the mount of slot 0 has seen {} saves of it by its run, and this one {}", lead.count,
                       own.count);
  }
  const Milliseconds apart = kApart + std::min(lead.last - lead.first, own.last - own.first) + lead.error + own.error;
  for (const auto& [one, other, what] : {std::tuple(lead.first, own.first, "began"), {lead.last, own.last, "ended"}}) {
    const Milliseconds between = std::chrono::abs(one - other);
    if (between > apart)
      return fmt::format("slot 0 {} to write its files {} apart from this slot", what, seconds_text(between));
  }
  return {};
}

Result<Milliseconds> time_in(const json& life, const char* name) {
  const auto found = life.find(name);
  const bool is_number = found != life.end() && found->is_number_integer();
  const bool fits = is_number && (!found->is_number_unsigned() || found->get<uint64_t>() < uint64_t{kMostTime});
  const int64_t time = fits ? found->get<int64_t>() : -kMostTime;
  if (time <= -kMostTime || time >= kMostTime) return Error(EBADMSG, fmt::format("its \"life\" has no \"{}\"", name));
  return Milliseconds(time);
}

}  // namespace

SaveLife SaveLife::by(Milliseconds ahead, Milliseconds further_error) const {
  return {began + ahead, first + ahead, last + ahead, error + further_error, count};
}

std::string why_not_one_save(const SaveFacts& lead, const SaveFacts& own) {
  if (!lead.attempt.empty() && !own.attempt.empty()) {
    if (lead.attempt == own.attempt) return {};
    return fmt::format("slot 0 holds another attempt to save it: {}, and this slot {}", io::printable(lead.attempt),
                       io::printable(own.attempt));
  }
  if (lead.attempt.empty() != own.attempt.empty()) {
    const bool own_did = lead.attempt.empty();
    return fmt::format("the ranks of {} have agreed on an id for this save, and those of {} have not{}",
                       own_did ? "this slot" : "slot 0", own_did ? "slot 0" : "this slot", kAgree);
  }
  if (!lead.life || !own.life) {
    return fmt::format(
        "nobody knows whether the files of slot 0 are of the same save: {} does not know who wrote them{}",
        lead.life ? "this mount" : "slot 0", kAgree);
  }
  const std::string why = why_not_one_life(*lead.life, *own.life);
  return why.empty() ? why : why + kAgree;
}

json json_of(const SaveFacts& facts) {
  json object = {{"attempt", facts.attempt}};
  if (const auto& life = facts.life) {
    object["life"] = {{"began", life->began.count()},
                      {"first", life->first.count()},
                      {"last", life->last.count()},
                      {"error", life->error.count()},
                      {"count", life->count}};
  }
  return object;
}

Result<SaveFacts> save_facts_of(const json& header) {
  SaveFacts facts;
  TRY_ASSIGN(facts.attempt, text_field(header, "attempt"));
  const auto found = header.find("life");
  if (found == header.end()) return facts;
  if (!found->is_object()) return Error(EBADMSG, "its \"life\" is none");
  SaveLife& life = facts.life.emplace();
  TRY_ASSIGN(life.began, time_in(*found, "began"));
  TRY_ASSIGN(life.first, time_in(*found, "first"));
  TRY_ASSIGN(life.last, time_in(*found, "last"));
  TRY_ASSIGN(life.error, time_in(*found, "error"));
  TRY_ASSIGN(life.count, number_field(*found, "count"));
  if (life.error < Milliseconds(0) || life.last < life.first) return Error(EBADMSG, "its \"life\" is none");
  return facts;
}

}  // namespace ckptfs::meta::remote
