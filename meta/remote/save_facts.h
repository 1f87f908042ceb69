// Of which save the files of a slot are: whether two slots hold files of one save is told by this, and by nothing that
// they hold at one moment. Stateless; any thread.
//
//   - *Agreed*: the ranks have drawn an id for the save (ckptfs.Saver, ckptfs.patch and others). Equal ids: one save.
//   - *By life*, of trainers that say nothing: the processes that wrote on the one slot had begun before the other
//     slot's first file was written, and the other way round; both slots have seen as many saves of the step by that
//     run, and both began and ended to write at about the same time. So no run that was started later can have written
//     one of them, and no second save of the same run.
//
// A doubt separates: such parts wait. Times are the store's, each with an error. What life cannot tell: two saves of
// one step by one run within a minute, one of which no mount has seen.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/result.h"

namespace ckptfs::meta::remote {

using Milliseconds = std::chrono::milliseconds;  // since 1970

struct SaveLife {
  Milliseconds began{};  // when the youngest process that wrote its files began
  Milliseconds first{};  // when the oldest of its files was written
  Milliseconds last{};   // and the newest
  Milliseconds error{};  // of each of these
  uint64_t count = 1;    // so often these processes have saved the step, as far as it was seen
  bool operator==(const SaveLife&) const = default;

  // By another clock, which shows `ahead` more than this one.
  SaveLife by(Milliseconds ahead, Milliseconds further_error) const;
};

struct SaveFacts {
  std::string attempt;           // the agreed id; empty: there is none
  std::optional<SaveLife> life;  // none: it is not known
  bool operator==(const SaveFacts&) const = default;
};

// Why the files that slot 0 has need not be of the save that this slot's are, in words. Empty: they are of one save.
std::string why_not_one_save(const SaveFacts& lead, const SaveFacts& own);

nlohmann::json json_of(const SaveFacts& facts);
// EBADMSG, in words.
Result<SaveFacts> save_facts_of(const nlohmann::json& header);

}  // namespace ckptfs::meta::remote
