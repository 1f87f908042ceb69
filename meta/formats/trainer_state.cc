#include "meta/formats/trainer_state.h"

#include <utility>

#include "io/json.h"

namespace ckptfs::meta::formats {
namespace {

constexpr io::JsonBounds kTrainerStateBounds{
    .bytes = uint64_t{64} << 20, .values = io::kAnyNumber, .text = uint64_t{1} << 20, .depth = 64, .python = true};

// Depth 1 is the state, 3 an entry of its history.
class StateReader : public io::JsonVisitor {
 public:
  // The metric of that name is looked for in the entries of that step.
  explicit StateReader(std::string name = {}, std::optional<double> of = {}) : name_(std::move(name)), of_(of) {}

  bool number_integer(number_integer_t number) override { return told(static_cast<double>(number)); }
  bool number_unsigned(number_unsigned_t number) override { return told(static_cast<double>(number)); }
  bool number_float(number_float_t number, const string_t&) override { return told(number); }
  bool string(string_t& text) override {
    if (depth_ == 1 && key_ == "best_model_checkpoint") best_model = text;
    return true;
  }
  bool key(string_t& key) override {
    has_step = has_step || (depth_ == 1 && key == "global_step");
    return JsonVisitor::key(key);
  }

  bool is_list = false;
  bool has_step = false;
  std::optional<double> step;
  std::optional<double> metric;
  std::string best_model;

 private:
  bool told(double value) {
    if (depth_ == 1 && key_ == "global_step") step = value;
    if (depth_ != 3 || !in_entry_) return true;
    if (key_ == "step") of_step_ = value;
    if (key_ == name_) of_name_ = value;
    return true;
  }
  bool begin(bool object) override {
    if (depth_ == 1) is_list = !object;
    if (depth_ == 2) in_history_ = key_ == "log_history";
    if (depth_ != 3) return true;
    in_entry_ = in_history_ && object;
    of_step_.reset();
    of_name_.reset();
    return true;
  }
  bool end() override {
    if (depth_ == 3 && in_entry_ && of_name_ && of_step_ == of_) metric = of_name_;
    return true;
  }

  const std::string name_;
  const std::optional<double> of_;
  bool in_history_ = false;
  bool in_entry_ = false;
  std::optional<double> of_step_;
  std::optional<double> of_name_;
};

Result<> read_state(const io::LimitedFile& file, uint64_t size, StateReader& state) {
  return io::read_json(file, 0, size, kTrainerStateBounds, state);
}

}  // namespace

Result<> check_trainer_state(const io::LimitedFile& file, uint64_t size) {
  StateReader state;
  TRY(read_state(file, size, state));
  if (!state.has_step) return Error(ENODATA, "it has no global_step, so no Trainer wrote it");
  return success();
}

// It needs two passes, because "global_step" may come after the history.
Result<std::optional<double>> metric_in_trainer_state(const io::LimitedFile& file, uint64_t size,
                                                      const std::string& name) {
  StateReader state;
  TRY(read_state(file, size, state));
  if (state.is_list) return Error(EBADMSG, "it is no object");
  StateReader history(name, state.step);
  TRY(read_state(file, size, history));
  return history.metric;
}

Result<std::string> best_model_in_trainer_state(const io::LimitedFile& file, uint64_t size) {
  StateReader state;
  TRY(read_state(file, size, state));
  std::string& path = state.best_model;
  path.erase(path.find_last_not_of('/') + 1);
  return path.substr(path.rfind('/') + 1);
}

}  // namespace ckptfs::meta::formats
