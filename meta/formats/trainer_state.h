// trainer_state.json, which a Hugging Face Trainer writes last of all into each of its checkpoints. Only what is asked
// for is kept of it: a long run's has millions of values. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/read_limit.h"
#include "io/result.h"

namespace ckptfs::meta::formats {

inline constexpr const char* kTrainerStateName = "trainer_state.json";

// Of both: EBADMSG, in words: it is no JSON, as one that is cut short; EFBIG, in words: nobody writes such a one.
// `file` has `size` bytes.
Result<> check_trainer_state(const io::LimitedFile& file, uint64_t size);
// What was logged under that name at the checkpoint's own step; none: nothing was, or no number.
//   {"global_step": 500, "log_history": [{"step": 500, "eval_loss": 1.5}]}
Result<std::optional<double>> metric_in_trainer_state(const io::LimitedFile& file, uint64_t size,
                                                      const std::string& name);

}  // namespace ckptfs::meta::formats
