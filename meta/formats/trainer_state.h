// Reads trainer_state.json, which a Hugging Face Trainer writes last into each of its checkpoints. Keeps only the
// requested values, because the file of a long run has millions. Stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/read_limit.h"
#include "io/result.h"

namespace ckptfs::meta::formats {

inline constexpr const char* kTrainerStateName = "trainer_state.json";

// All of them fail with EBADMSG, in words, if the file is not JSON or is cut short, and with EFBIG, in words, if it
// exceeds the bounds. `file` has `size` bytes.
// ENODATA, in words: it names no step.
Result<> check_trainer_state(const io::LimitedFile& file, uint64_t size);
// Returns the value that was logged under that name at the checkpoint's own step, or nothing if there is no such
// number.
//   {"global_step": 500, "log_history": [{"step": 500, "eval_loss": 1.5}]}
Result<std::optional<double>> metric_in_trainer_state(const io::LimitedFile& file, uint64_t size,
                                                      const std::string& name);

// Returns the step that the Trainer loads at its end (load_best_model_at_end), by the last component of the path that
// the file has for it; empty: it names none.
//   {"best_model_checkpoint": "out/checkpoint-500"}
Result<std::string> best_model_in_trainer_state(const io::LimitedFile& file, uint64_t size);

}  // namespace ckptfs::meta::formats
