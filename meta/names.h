// Names that mean something: DeepSpeed's swap folders, the root's reserved names, step tags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/result.h"

namespace ckptfs::meta {

inline constexpr const char* kStepsName = "steps";
inline constexpr const char* kViewsName = "views";
inline constexpr size_t kMaximumName = 255;
// Where swap state lies in a step.
inline constexpr const char* kTensorsName = "offloaded_tensors";
inline constexpr const char* kParamsName = "offloaded_params";
// xattrs by which the mount is controlled; never listed.
inline constexpr const char* kControlPrefix = "user.ckptfs.";
inline constexpr const char* kSourceXattr = "user.ckptfs.source";
inline constexpr const char* kMetricXattr = "user.ckptfs.metric.";  // and its name; of a step
inline constexpr const char* kWholeXattr = "user.ckptfs.whole";     // of a step: "1", or not there
inline constexpr const char* kLedgerXattr = "user.ckptfs.ledger";   // of a step: meta/steps/ledger.h

// "zero_stage_3"
bool is_swap_folder_name(std::string_view name);
// "0_6.tensor.swp", as the optimizer's are called. A save does not go by it: meta/steps/source.h has what that takes.
bool is_swap_file_name(std::string_view name);
// "rank12" -> 12
std::optional<unsigned> rank_of(std::string_view name);
// 7 -> "rank07", as DeepSpeed reads it
std::string checkpoint_rank_name(unsigned rank);
// Where an attempt to save a step lies until it is committed (meta/steps/partial.h): "partial-5f3a-global_step100". The
// word comes first, so that no trainer takes the folder for a step: a Trainer's save_total_limit counts checkpoint-*.
inline constexpr const char* kPartialPrefix = "partial-";
// EINVAL: no letters and digits, or more than 64.
Result<> check_attempt(std::string_view attempt);
// Attempts of `ckptfs fetch` begin with this word.
inline constexpr const char* kFetchAttempt = "fetch-";
bool is_fetch_name(std::string_view name);  // "partial-fetch-5f3a-global_step100"
std::string partial_name(std::string_view tag, std::string_view attempt);
// Also true of the form that earlier versions gave: "global_step100.5f3a.partial".
bool is_partial_name(std::string_view name);
// The tags of which `name` may be an attempt: the word of an attempt may have dashes of its own.
std::vector<std::string_view> tags_of_partial(std::string_view name);
// What an abandoned step is called once it is set aside (meta/steps/partial.h): "incomplete-checkpoint-500"; from the
// second of that name on "incomplete-2-checkpoint-500".
std::string set_aside_name(std::string_view tag, unsigned attempt);
bool is_set_aside_name(std::string_view name);
// EINVAL, in words, for a reserved or impossible tag.
Result<> check_tag(std::string_view tag);
// The number that a step's name carries; none: no step's name. By DeepSpeed (global_step100), transformers
// (checkpoint-500), accelerate (checkpoint_3), Megatron (iter_0000100), verl (global_step_5), Lightning
// (epoch=3-step=900), Automodel (epoch_0_step_900), Composer (ep0-ba900), and step_7, step-7, step7.
std::optional<uint64_t> step_number(std::string_view name);
// Has it the name of a step in which folders may have such names, too? "checkpoint-500/global_step500"
bool may_hold_step(std::string_view name);
// The number in any name: that of a step, otherwise its last digits, 100 of "iter_0000100"; none: it has none, or too
// many.
std::optional<uint64_t> last_number_in(std::string_view name);

}  // namespace ckptfs::meta
